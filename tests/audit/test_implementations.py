"""The verdicts on named attention functions: as recorded, and again with fewer examples."""

import sys
from importlib import metadata
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from attention_scaling import CONFORMANCE_KINDS, check_attention
from attention_scaling._conformance_case import Case
from attention_scaling._conformance_truth import truth
from scaling_book.audit import model_attention
from scaling_book.audit.implementations import (
    DTYPES,
    EXAMPLES,
    IMPLEMENTATIONS,
    SEED,
    attempt,
    failed,
    main,
    read_record,
)
from scaling_book.audit.model_attention import MODELS, eager
from scaling_book.audit.wrong_attention import VARIANTS, Chunked, Textbook
from scaling_book.audit.wrong_together import MEETINGS

LOW_CAUSAL = "scale of zero or below, causal"
LEAKS = "NaN or infinity behind the mask"
HALF_SCORES = "scores beyond half precision"
RECORD = read_record()
ENTRIES = {entry["name"]: entry for entry in RECORD["implementations"]}
NAMED = {one.name: one for one in IMPLEMENTATIONS}


def of_group(*groups):
    return [one.name for one in IMPLEMENTATIONS if one.group in groups]


def same_versions(name):
    packages = ["torch"] + ["transformers"] * (NAMED[name].group == "models")
    recorded = (RECORD["provenance"][package] for package in packages)
    return [x.split("+")[0] for x in recorded] == [
        metadata.version(package).split("+")[0] for package in packages
    ]


# What is recorded


def test_the_record_holds_what_is_named():
    assert list(ENTRIES) == list(NAMED)
    assert len(NAMED) == len(IMPLEMENTATIONS)
    assert RECORD["setting"] == {"seed": SEED, "examples": EXAMPLES, "dtypes": list(DTYPES)}
    for name, entry in ENTRIES.items():
        one = NAMED[name]
        assert (entry["group"], entry["function"], entry["mistake"]) == (
            one.group,
            one.function,
            one.mistake,
        )
        for part in entry["dtypes"].values():
            tried = set(part["passed"]) | set(part["not_applicable"])
            assert tried == set(CONFORMANCE_KINDS)


def test_each_failure_has_its_symptom_and_inputs():
    for entry in ENTRIES.values():
        parts = [part[key] for part in entry["dtypes"].values() for key in ("failed", "exposed")]
        for kind, shown in chain.from_iterable(d.items() for d in [*parts, entry["gradients"]]):
            assert kind in CONFORMANCE_KINDS
            assert shown["symptom"]
            assert shown["inputs"].startswith("query = ")


@pytest.mark.parametrize("name", [*of_group("library"), "math", "nothing wrong"])
def test_no_right_implementation_is_accused(name):
    assert failed(ENTRIES[name]) == {}
    assert ENTRIES[name]["factor"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["default", "flash"])
def test_the_fused_kernel_for_the_cpu_is_accused_of_one_thing(name):
    assert set(failed(ENTRIES[name])) == {LOW_CAUSAL}


@pytest.mark.parametrize("name", of_group("models"))
def test_no_output_of_a_model_is_wrong_in_float32(name):
    parts = ENTRIES[name]["dtypes"]
    assert parts["float32"]["failed"] == {}
    assert set(parts["bfloat16"]["failed"]) <= {HALF_SCORES}
    assert {kind for part in parts.values() for kind in part["refused"]} == set()


@pytest.mark.parametrize("name", of_group("wrong")[1:])
def test_each_wrong_variant_is_accused_of_its_kind(name):
    assert NAMED[name].mistake in failed(ENTRIES[name])


def test_every_kind_has_a_variant():
    kinds = {variant.kind for variant in (*VARIANTS, *MEETINGS)}
    assert kinds == set(CONFORMANCE_KINDS) - {LEAKS}


# The same again


@pytest.mark.parametrize("name", ["default", "math", "fused_attention", "LLaMA", "gpt-oss"])
def test_fewer_examples_say_nothing_else(name):
    """The first examples are the recorded ones, so what is found in them is in the record."""
    if not same_versions(name):
        pytest.skip("recorded with other versions")
    again, entry = attempt(NAMED[name], examples=2), ENTRIES[name]
    assert again["factor"] == pytest.approx(entry["factor"], abs=1e-3)
    assert set(again["gradients"]) <= set(entry["gradients"])
    for dtype, part in again["dtypes"].items():
        assert set(part["failed"]) <= set(entry["dtypes"][dtype]["failed"])
        assert set(part["refused"]) <= set(entry["dtypes"][dtype]["refused"])


@pytest.mark.parametrize("name", of_group("wrong")[1:])
def test_the_kind_of_a_variant_is_found_where_it_was(name):
    mistake = NAMED[name].mistake
    again = attempt(NAMED[name], kinds=[mistake])
    assert failed(again)[mistake] == failed(ENTRIES[name])[mistake]


@pytest.mark.parametrize("right", [Textbook(), type("Right", (Chunked,), {})()])
def test_what_the_variants_start_from_is_right(right):
    report = check_attention(right, examples=3)
    assert report.ok, str(report)


class StoredInHalf(Textbook):
    """Keeps scores, cap and shift in the inputs' format, sinks among them, as model classes do."""

    def scores(self, query, key, s):
        self.dtype = query.dtype
        return super().scores(query, key, s).to(self.dtype).double()

    def weights(self, z, column):
        if column is None:
            return super().weights(z, None)
        z = torch.cat([z.to(self.dtype), column.to(self.dtype).expand(*z.shape[:-1], 1)], dim=-1)
        p = torch.softmax((z - z.amax(dim=-1, keepdim=True)).double(), dim=-1)
        return p[..., :-1].to(self.dtype).double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_stored_in_half_precision_beside_a_sink_accuse_nobody(dtype):
    """Not even where a sink is far above small scores, so that the shift is what rounds them."""
    one, sink = torch.ones(1, 1, 1, 1, dtype=dtype), 9.0
    for score in torch.linspace(0.01, 0.49, 25).tolist():
        case = Case(one, score * one, one, sinks=torch.tensor([sink], dtype=dtype))
        right = truth(case, strict=False)
        assert (case.run(StoredInHalf()).double() - right.output).abs() <= right.tolerance
    kinds = ["sinks", "sinks with other options"]
    report = check_attention(StoredInHalf(), kinds=kinds, examples=20, dtypes=dtype)
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_far_beyond_the_cap_its_height_counts_in_half_precision_too(dtype):
    """There the stored scores' rounding is large, and the cap leaves nothing of it."""

    class Higher(Textbook):
        def cap(self, z, c):
            return 1.25 * super().cap(z, c)

    report = check_attention(Higher(), kinds=["logits far beyond the cap"], dtypes=dtype)
    assert report.failed() == ("logits far beyond the cap",)


# The command


def test_a_part_can_be_written_elsewhere(tmp_path, capsys):
    out = tmp_path / "new" / "part.json"
    assert main(["--only", "s·sink", "--examples", "2", "--out", str(out)]) == 0
    (entry,) = read_record(out)["implementations"]
    assert "sinks" in failed(entry)
    assert capsys.readouterr().out.startswith("s·sink ")
    assert [path.name for path in out.parent.iterdir()] == ["part.json"]


@pytest.mark.parametrize("arguments", [["--only", "nobody"], ["--only", "math"]])
def test_calls_that_make_no_sense(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("transformers.models")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="extra `models`"):
        eager(MODELS[0])


def test_models_get_the_mask_in_the_form_that_they_give_it(monkeypatch):
    seen = {}

    def forward(module, query, key, value, mask, **options):
        seen.update(options, mask=mask, axes=query.dim(), groups=module.num_key_value_groups)
        return query.transpose(1, 2), None

    stub = SimpleNamespace(eager_attention_forward=forward)
    monkeypatch.setattr(model_attention, "import_module", lambda name: stub)
    attention = eager(next(model for model in MODELS if model.name == "Gemma 2"))
    q, k = torch.ones(4, 2, 16, dtype=torch.float16), torch.ones(2, 2, 16, dtype=torch.float16)
    wanted = torch.tensor([[0.0, torch.finfo(torch.float16).min], [0.0, 0.0]]).half()
    for options in (
        {"is_causal": True},
        {"attn_mask": torch.tensor([[True, False], [True, True]])},
        {"attn_mask": torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]).half()},
        {"attn_mask": torch.tensor([[True, True], [True, True]]), "is_causal": True},
        {"attn_mask": torch.zeros(1, 2).half(), "is_causal": True},
    ):
        assert torch.equal(attention(q, k, k, enable_gqa=True, softcap=2.0, **options), q)
        assert torch.equal(seen.pop("mask"), wanted)
        assert seen == {"scaling": 0.25, "softcap": 2.0, "axes": 4, "groups": 2}
    attention(q, k, k, scale=0.0)
    assert (seen["scaling"], seen["mask"]) == (0.0, None)
