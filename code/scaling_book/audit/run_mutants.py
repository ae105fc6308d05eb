"""Try every mutant: ``make mutants``, or ``python -m scaling_book.audit.run_mutants``.

First the code without a mutant must be green. Then each mutant is put into a copy of the sources,
and the register and the laws run on it. A claim whose evidence calls nothing of the patched
function cannot change and keeps its outcome (`reach`); with ``--whole`` it is measured all the
same. What is done lies in ``_build/mutants`` until the code changes, so a run that was stopped goes
on where it was. The exit status is 0 if no mutant survives, each turns red the claims that it
declares, and each claim with evidence is turned red by a measurement for at least one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import date
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from scaling_book.audit import reach
from scaling_book.audit.files import write
from scaling_book.audit.fingerprint import LAWS, LIBRARY, RESULTS, ROOT, WATCHED, code_fingerprint
from scaling_book.audit.mutants import (
    COMMAND,
    ERROR,
    MEASUREMENT,
    RECORD,
    Mutant,
    MutantError,
    missed,
    problems,
    read_mutants,
    survived,
    table_fingerprint,
)
from scaling_book.evidence import slugs

# A fault can make a loop endless. Sound code needs one or two minutes for each of the two steps.
PATIENCE = 1800.0
# Files that are read anew each time: no bytecode, which could be that of the mutant before.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
# The laws use none of pytest's plugins, and it starts faster without.
ENVIRONMENT["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
FAILED_LAW = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)

Result = dict[str, Any]


class Tree:
    """A copy of what evidence and laws need, into which one fault at a time is put.

    Parameters
    ----------
    folder
        Where the copy goes; it must not exist.
    root
        The project's root folder.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in (*WATCHED, "pyproject.toml"):
            source, target = root / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_file():
                shutil.copy2(source, target)
            elif source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        for name in RESULTS:
            (folder / name).unlink(missing_ok=True)

    def run(
        self, mutant: Mutant | None, slugs: Sequence[str] | None = None, laws: bool = True
    ) -> Result:
        """Measure the evidence and test the laws with one fault in the code, or with none.

        Parameters
        ----------
        mutant
            The fault; None for the code as it is.
        slugs
            The claims to measure; None for all of them.
        laws
            Whether to test the laws too. Where only evidence is patched they are not, as they
            import nothing of it.

        Returns
        -------
        dict
            `red`: for each claim whose evidence fails, how. `law`: the first law that fails, None
            if none does. `measured`: how many claims were measured, None for all. `seconds`.

        Raises
        ------
        MutantError
            If the patch does not fit or the patched code does not even start.
        """
        start = time.perf_counter()
        path = self.folder / mutant.file if mutant else None
        original = path.read_text("utf8") if path else ""
        try:
            if mutant and path:
                path.write_text(mutant.patched(original), "utf8")
            red = {} if slugs == [] else self._red_claims(mutant, slugs or [])
            touched = mutant is None or mutant.file.startswith(f"{LIBRARY}/")
            law = self._broken_law(mutant) if laws and touched else None
        finally:
            if path:
                path.write_text(original, "utf8")
        seconds = round(time.perf_counter() - start, 1)
        return {"red": red, "law": law, "measured": slugs and len(slugs), "seconds": seconds}

    def calls(self) -> dict[str, reach.Calls]:
        """Return which functions the evidence for each claim calls."""
        file = self.folder / "calls.json"
        # by its path, without the folder of the other modules of audit
        output = self._python("-P", reach.__file__, str(file))
        if not file.is_file():
            raise MutantError(f"the calls of the evidence cannot be recorded:\n{output[-2000:]}")
        found: dict[str, reach.Calls] = json.loads(file.read_text("utf8"))
        return found

    def touched(self, mutant: Mutant, calls: Mapping[str, reach.Calls]) -> list[str] | None:
        """Return the claims that a mutant can touch; None if it can touch any of them."""
        text = (self.folder / mutant.file).read_text("utf8")
        mutant.patched(text)  # it fits, or this says why not
        return reach.reached(calls, mutant.file, text, *mutant.lines(text))

    def _red_claims(self, mutant: Mutant | None, slugs: Sequence[str]) -> dict[str, str]:
        file = self.folder / "outcomes.json"
        file.unlink(missing_ok=True)
        command = ("scaling_book.evidence", *slugs, "--outcomes", str(file))
        output = self._call(mutant, command)
        if not file.is_file():
            raise MutantError(f"{_label(mutant)} does not start:\n{output[-2000:]}")
        outcomes = json.loads(file.read_text("utf8"))
        return {
            slug: ERROR if outcome["raised"] else MEASUREMENT
            for slug, outcome in outcomes.items()
            if outcome["why"]
        }

    def _broken_law(self, mutant: Mutant | None) -> str | None:
        options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider")
        # Those of the patched module first, to be done soon.
        near = f"test_{Path(mutant.file).stem}.py" if mutant else ""
        names = sorted(path.name for path in (self.folder / LAWS).glob("test_*.py"))
        names.sort(key=lambda name: name != near)
        paths = [f"{LAWS}/{name}" for name in names]
        output = self._call(mutant, ("pytest", *paths, *options))
        failed = FAILED_LAW.search(output)
        if failed:
            return failed[1].removeprefix(f"{LAWS}/")
        if not re.search(r"^\d+ passed", output, re.M):
            raise MutantError(f"{_label(mutant)}: the laws were not tested:\n{output[-2000:]}")
        return None

    def _call(self, mutant: Mutant | None, arguments: Sequence[str]) -> str:
        """Run a module of the copy and return all that it prints."""
        return self._python("-m", *arguments, label=_label(mutant))

    def _python(self, *arguments: str, label: str = "a run") -> str:
        try:
            done = subprocess.run(
                [sys.executable, "-X", "utf8", *arguments],
                cwd=self.folder,
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(self.folder / "code")},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf8",
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MutantError(f"{label} runs for longer than {PATIENCE:.0f} s") from None
        return done.stdout


def _label(mutant: Mutant | None) -> str:
    return f"mutant {mutant.name!r}" if mutant else "the code without a mutant"


def full_result(mutant: Mutant, result: Mapping[str, Any]) -> Result:
    """Return what the table says of one mutant."""
    return {**asdict(mutant), "claims": list(mutant.claims), **result}


def try_mutants(
    mutants: Sequence[Mutant],
    *,
    root: Path = ROOT,
    state: Path,
    jobs: int = 2,
    quick: bool = False,
    whole: bool = False,
) -> tuple[Result, list[Result]]:
    """Run the code without a mutant, and then with each; return both results.

    Parameters
    ----------
    mutants
        What to try.
    root
        The project's root folder.
    state
        The folder for what is finished; what lies there for this state of the code is not redone.
    jobs
        How many run at a time.
    quick
        Measure only the claims that a mutant declares, and test the laws only where it declares
        none.
    whole
        Measure also the claims that a mutant cannot touch.

    Raises
    ------
    MutantError
        If the code without a mutant is not green, or a mutant cannot be run.
    """
    suffix = "-quick" if quick else "-whole" if whole else ""
    folder = state / f"{code_fingerprint(root)}{suffix}"
    wanted = sorted({slug for mutant in mutants for slug in mutant.claims}) if quick else []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            trees.put(Tree(Path(scratch) / str(number), root))

        def one(mutant: Mutant | None) -> Result:
            name = f"{mutant.name}-{mutant.fingerprint}" if mutant else "baseline"
            file = folder / f"{name}.json"
            if file.is_file() and not (quick and mutant is None):
                former: Result = json.loads(file.read_text("utf8"))
                return former
            tree = trees.get()
            try:
                if quick:
                    own = list(mutant.claims) if mutant else wanted
                    result = tree.run(mutant, own, laws=mutant is not None and not own)
                else:
                    result = tree.run(
                        mutant, tree.touched(mutant, calls) if mutant and calls else None
                    )
            finally:
                trees.put(tree)
            write(file, result)
            return result

        baseline = one(None)
        if baseline["red"] or baseline["law"]:
            raise MutantError(
                "the code is not green without a mutant: "
                + ", ".join([*baseline["red"], *filter(None, [baseline["law"]])])
            )
        calls = None if quick or whole else _calls(folder / "calls.json", scratch, root)
        pool = ThreadPoolExecutor(jobs)
        try:
            futures = {pool.submit(one, mutant): mutant for mutant in mutants}
            with tqdm(total=len(mutants), unit="mutant") as bar:
                for future in as_completed(futures):
                    mutant, result = futures[future], future.result()
                    bar.write(line(full_result(mutant, result)), file=sys.stderr)
                    bar.update()
        finally:
            pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C: start no more
        return baseline, [full_result(mutant, one(mutant)) for mutant in mutants]


def _calls(file: Path, scratch: str, root: Path) -> dict[str, reach.Calls]:
    """Return which functions each claim calls; recorded once for a state of the code."""
    if not file.is_file():
        write(file, Tree(Path(scratch) / "calls", root).calls())
    found: dict[str, reach.Calls] = json.loads(file.read_text("utf8"))
    return found


def line(result: Result) -> str:
    """Return what became of one mutant, in one line."""
    if survived(result):
        verdict = "SURVIVES"
    elif missed(result):
        verdict = f"LEAVES GREEN {', '.join(missed(result))}"
    else:
        verdict = "killed"
    return (
        f"{result['name']}: {verdict}; {len(result['red'])} claim(s) red, "
        f"law: {result['law'] or '–'} ({result['seconds']:.0f} s)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scaling_book.audit.run_mutants", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="try these, record nothing")
    parser.add_argument(
        "--quick", action="store_true", help="measure the declared claims only, record nothing"
    )
    parser.add_argument(
        "--whole", action="store_true", help="measure also the claims that a mutant cannot touch"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time (2)")
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    parser.add_argument("--state", type=Path, default=ROOT / "_build" / "mutants")
    options = parser.parse_args(arguments)
    try:
        mutants = read_mutants()
        if options.only:
            unknown = set(options.only) - {mutant.name for mutant in mutants}
            if unknown:
                raise MutantError(f"no mutant is called {', '.join(sorted(unknown))}")
            mutants = [mutant for mutant in mutants if mutant.name in options.only]
        fingerprint = table_fingerprint(ROOT, mutants)
        baseline, results = try_mutants(
            mutants,
            state=options.state,
            jobs=options.jobs,
            quick=options.quick,
            whole=options.whole,
        )
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    record: dict[str, Any] = {
        "provenance": {
            "command": COMMAND,
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy", "hypothesis")},
        },
        "fingerprint": fingerprint,
        "baseline": {"claims": len(slugs()), "seconds": baseline["seconds"]},
        "mutants": results,
    }
    partial = bool(options.only) or options.quick
    wrong = problems(record, [] if partial else slugs())
    if not partial:
        write(options.out, record)
    print(*wrong, sep="\n", file=sys.stderr)
    print(f"{len(results)} mutants, {len(results) - sum(map(survived, results))} killed.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
