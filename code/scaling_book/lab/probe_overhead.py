"""What `attention_scaling.AttentionProbe` costs: time of a forward pass with it, over time without.

``python -m scaling_book.lab.probe_overhead`` measures two models of the `transformers` package and
writes ``data/probe_overhead.json``. Weights are random and nothing is downloaded: time does not
depend on them. Both sides of a ratio come from the same process and stand beside one another; time
is processor time of one thread.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attention_scaling import AttentionProbe
from scaling_book.lab.attention_speed import Spread, load_average, write

__all__ = ["RECORD", "read_record", "record_ratio"]

COMMAND = "python -m scaling_book.lab.probe_overhead"
#: Where the record lies, whatever the working directory.
RECORD = Path(__file__).resolve().parents[3] / "data" / "probe_overhead.json"
TOKENS = 256


def encoder() -> Any:
    """Build a model of all-MiniLM-L6-v2's size."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
    return BertModel(config)


def decoder() -> Any:
    """Build a model of GPT-2 small's size, the class's defaults."""
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(use_cache=False))


MODELS: Mapping[str, Callable[[], Any]] = {"minilm": encoder, "gpt2": decoder}


def measure(build: Callable[[], Any], repetitions: int, tokens: int = TOKENS) -> dict[str, Any]:
    """Seconds of forward passes without and with a probe, in turn."""
    model = build().eval()
    text = torch.randint(5, 1000, (1, tokens), generator=torch.Generator().manual_seed(1))
    seconds: dict[str, list[float]] = {"plain": [], "probed": []}
    with torch.inference_mode():
        model(text)  # the first pass warms up
        for _ in range(repetitions):
            start = time.process_time()
            model(text)
            seconds["plain"].append(time.process_time() - start)
            start = time.process_time()
            with AttentionProbe(model) as probe:
                model(text)
            seconds["probed"].append(time.process_time() - start)
    records = probe.records
    return {
        "tokens": tokens,
        "layers": len(records),
        "heads": len(records[0].heads),
        "head_dim": records[0].head_dim,
        "seconds": seconds,
    }


def record_ratio(entry: Mapping[str, Any]) -> Spread:
    """Time with a probe over time without: median and quartiles over the repetitions."""
    ratios = np.divide(entry["seconds"]["probed"], entry["seconds"]["plain"])
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return Spread(median, low, high)


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Read the record that the command wrote.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `{COMMAND}` writes it, in a minute")
    record: dict[str, Any] = json.loads(path.read_text("utf8"))
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    parser.add_argument("--repetitions", type=int, default=9)
    options = parser.parse_args(arguments)
    import transformers

    torch.set_num_threads(1)
    before = load_average()
    models = {}
    for name, build in MODELS.items():
        models[name] = measure(build, options.repetitions)
        spread = record_ratio(models[name])
        print(f"{name:8}{spread.median:.2f}  ({spread.low:.2f} to {spread.high:.2f})", flush=True)
    provenance = {
        "command": COMMAND,
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": 1,
        "load_average": {"before": before, "after": load_average()},
    }
    write(options.out, {"provenance": provenance, "models": models})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
