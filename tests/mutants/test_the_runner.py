"""The runner of mutants, on a small project of its own; and the recorded table."""

import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from scaling_book.audit import mutants as table
from scaling_book.audit import reach, run_mutants
from scaling_book.audit.fingerprint import ROOT, code_fingerprint
from scaling_book.audit.mutants import (
    Mutant,
    MutantError,
    problems,
    read_mutants,
    read_record,
    table_fingerprint,
)
from scaling_book.audit.run_mutants import try_mutants
from scaling_book.evidence import slugs

LIBRARY = """
def double(x):
    return 2 * x


def triple(x):
    return 3 * x


def half(x):
    return x / 2
"""
# Stands in for the register: two claims, and a third that raises where `half` fails.
REGISTER = """
from attention_scaling import double, half, triple

CLAIMS = {
    "double-is-two": lambda: double(3) == 6,
    "triple-is-three": lambda: triple(3) == 9,
    "half-divides": lambda: [1][int(half(1))] == 1,
}


def slugs():
    return list(CLAIMS)


def run(slug):
    return CLAIMS[slug]()
"""
EVIDENCE = """
import json, sys
from pathlib import Path
from scaling_book.evidence import CLAIMS
from scaling_book.evidence.calls import count

count()
wanted = sys.argv[1 : sys.argv.index("--outcomes")] or CLAIMS
outcomes = {}
for slug in wanted:
    try:
        outcomes[slug] = {"why": [] if CLAIMS[slug]() else ["wrong"], "raised": False}
    except Exception as error:
        outcomes[slug] = {"why": [str(error)], "raised": True}
Path(sys.argv[-1]).write_text(json.dumps(outcomes))
"""
CALLS = """
from pathlib import Path

def count():
    with Path({log!r}).open("a") as file:
        file.write("x")
"""
LAWS = """
from attention_scaling import half

def test_half():
    assert half(4) == 2
"""
FILES = {
    "code/attention_scaling/__init__.py": LIBRARY,
    "code/scaling_book/__init__.py": "",
    "code/scaling_book/evidence/__init__.py": REGISTER,
    "code/scaling_book/evidence/__main__.py": EVIDENCE,
    "tests/library/test_laws.py": LAWS,
    "data/numbers.json": "{}\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n",
}


@pytest.fixture
def project(tmp_path):
    """A project with two functions under evidence and one under a law, and a log of its runs."""
    root = tmp_path / "project"
    log = tmp_path / "log"
    log.touch()
    files = FILES | {"code/scaling_book/evidence/calls.py": CALLS.format(log=str(log))}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf8")
    return root


def mutant(find, replacement, *claims, name="a-mutant"):
    file = "code/attention_scaling/__init__.py"
    return Mutant(name, "a kind", file, find, replacement, "a reason", claims)


DOUBLE = mutant("return 2 * x", "return x**2", "double-is-two", name="double")
TRIPLE = mutant("return 3 * x", "return 4 * x", "triple-is-three", name="triple")
HALF = mutant("return x / 2", "return x / 3", name="half")
RAISES = mutant("return x / 2", "return x + 7", "half-divides", name="raises")
SILENT = mutant("return 2 * x", "return x + x", name="silent")


def attempt(project, *some, **options):
    _, results = try_mutants(some, root=project, state=project.parent / "state", **options)
    return results


def runs_of_evidence(project):
    return len((project.parent / "log").read_text())


def test_evidence_or_a_law_kills(project):
    double, half, raises = attempt(project, DOUBLE, HALF, RAISES)
    assert (double["red"], double["law"]) == ({"double-is-two": "measurement"}, None)
    assert (half["red"], half["law"]) == ({}, "test_laws.py::test_half")
    assert raises["red"] == {"half-divides": "error"}
    assert not any(map(table.survived, (double, half, raises)))
    # the sources themselves were never touched
    assert (project / DOUBLE.file).read_text("utf8") == LIBRARY


def test_a_mutant_does_not_reach_the_next_one(project):
    results = attempt(project, DOUBLE, TRIPLE, DOUBLE, jobs=1)
    assert [list(result["red"]) for result in results] == [
        ["double-is-two"],
        ["triple-is-three"],
        ["double-is-two"],
    ]


def test_claims_that_a_mutant_cannot_touch_are_not_measured(project):
    # "double-is-two" is declared, but nothing that its evidence calls is patched
    elsewhere = replace(TRIPLE, claims=("double-is-two",))
    (touched,) = attempt(project, elsewhere)
    assert (touched["measured"], list(touched["red"])) == (1, ["triple-is-three"])
    (whole,) = attempt(project, elsewhere, whole=True)
    assert (whole["measured"], list(whole["red"])) == (None, ["triple-is-three"])


SOURCE = """
FACTOR = 2

def decorate(function):
    return function

@decorate
def outer(x=FACTOR):
    def inner():
        return FACTOR * x
    return inner()

class Box:
    size = 1
    def area(self):
        return self.size
"""


@pytest.mark.parametrize(
    ("line", "body"),
    [(2, None), (5, (4, 5)), (7, None), (8, None), (10, (7, 11)), (14, None), (16, (15, 16))],
)
def test_what_takes_effect_when_a_module_is_loaded_belongs_to_no_function(line, body):
    assert reach.body_around(SOURCE, line, line) == body


@pytest.mark.parametrize(
    ("file", "line", "claims"),
    [
        ("a.py", 5, None),  # called while loading
        ("a.py", 10, ["second"]),  # through the function within
        ("a.py", 16, []),
        ("b.py", 10, []),
        ("a.py", 2, None),
        ("a.json", 10, None),
    ],
)
def test_who_calls_a_function_can_be_touched(file, line, claims):
    calls = {"loading": {"a.py": [4]}, "first": {"b.py": [1]}, "second": {"a.py": [9]}}
    assert reach.reached(calls, file, SOURCE, line, line) == claims


def test_lines_of_a_patch():
    patch = replace(DOUBLE, find="return 2 * x\n\n\n", replace="return x")
    assert patch.lines(LIBRARY) == (3, 3)
    assert replace(DOUBLE, find="2 * x\n\n\ndef triple").lines(LIBRARY) == (3, 6)


def record_of(*results):
    return {"fingerprint": "0", "mutants": list(results)}


def test_a_survivor_is_reported(project):
    (silent,) = attempt(project, SILENT)
    assert table.survived(silent)
    assert "SURVIVES" in run_mutants.line(silent)
    assert problems(record_of(silent), []) == ["the mutant 'silent' survives"]


def test_a_claim_that_stays_green_is_reported(project):
    (result,) = attempt(project, replace(DOUBLE, claims=("double-is-two", "triple-is-three")))
    assert problems(record_of(result), []) == ["the mutant 'double' leaves 'triple-is-three' green"]
    assert "LEAVES GREEN triple-is-three" in run_mutants.line(result)


def test_each_claim_needs_a_measurement_that_turns_it_red(project):
    results = attempt(project, DOUBLE, TRIPLE, RAISES)
    known = ["double-is-two", "triple-is-three", "half-divides"]
    assert problems(record_of(*results), known) == ["no mutant turns the claim 'half-divides' red"]


def test_a_stale_table_is_reported():
    (found,) = problems(record_of(), [], fingerprint="1")
    assert "stale" in found
    assert "make mutants" in found


def test_the_code_must_be_green_without_a_mutant(project):
    path = project / DOUBLE.file
    path.write_text(DOUBLE.patched(path.read_text("utf8")), "utf8")
    with pytest.raises(MutantError, match="not green without a mutant: double-is-two"):
        attempt(project, TRIPLE)


def test_a_stopped_run_goes_on_where_it_was(project, monkeypatch):
    real, done = run_mutants.Tree.run, []

    def stops_at_the_third(self, *arguments, **options):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(arguments)
        return real(self, *arguments, **options)

    monkeypatch.setattr(run_mutants.Tree, "run", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        attempt(project, DOUBLE, TRIPLE, jobs=1)
    monkeypatch.setattr(run_mutants.Tree, "run", real)
    assert runs_of_evidence(project) == 2  # without a mutant, and with the first
    assert [r["name"] for r in attempt(project, DOUBLE, TRIPLE, jobs=1)] == ["double", "triple"]
    assert runs_of_evidence(project) == 3
    # another patch under the old name is another mutant
    attempt(project, replace(DOUBLE, replace="return 5 * x"), TRIPLE)
    assert runs_of_evidence(project) == 4
    # and other code makes everything new
    (project / "data" / "numbers.json").write_text("[]\n", "utf8")
    attempt(project, DOUBLE, TRIPLE)
    assert runs_of_evidence(project) == 7


def test_quick_measures_the_declared_claims_only(project):
    both = mutant("return 2 * x", "return x**2", "double-is-two", "triple-is-three", name="both")
    double, half = attempt(project, both, HALF, quick=True)
    assert list(double["red"]) == ["double-is-two"]
    assert half["law"] == "test_laws.py::test_half"
    assert runs_of_evidence(project) == 2  # without a mutant, and for the one that declares claims


def test_code_that_does_not_start_is_no_mutant(project):
    with pytest.raises(MutantError, match=r"mutant 'a-mutant' does not start:[\s\S]*SyntaxError"):
        attempt(project, mutant("return 2 * x", "return 2 *"))


def test_code_that_never_ends_is_no_mutant(project, monkeypatch):
    attempt(project)  # the code without a mutant is sound
    monkeypatch.setattr(run_mutants, "PATIENCE", 2.0)
    with pytest.raises(MutantError, match="runs for longer than 2 s"):
        attempt(project, mutant("return 2 * x", "while True: pass"))


def test_what_a_watched_file_says_is_part_of_the_fingerprint(project):
    before = code_fingerprint(project)
    for name in ("mutants.json", "false_alarms.json"):
        (project / "data" / name).write_text("{}\n", "utf8")
    (project / "README.md").write_text("A project.\n", "utf8")
    assert code_fingerprint(project) == before
    (project / "tests" / "library" / "test_laws.py").write_text("", "utf8")
    assert code_fingerprint(project) != before


# How mutants are written


def written(project, **changes):
    entry = {
        "kind": "a kind",
        "file": DOUBLE.file,
        "find": "return 2 * x",
        "replace": "return x",
        "why": "a reason",
    }
    entry = {name: value for name, value in (entry | changes).items() if value is not None}
    path = project / table.MUTANTS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"a-mutant": entry}), "utf8")
    return read_mutants(project)


def test_mutants_are_read(project):
    (one,) = written(project, claims=["double-is-two"])
    assert (one.name, one.claims) == ("a-mutant", ("double-is-two",))
    assert one.patched("return 2 * x") == "return x"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"find": "return 5 * x"}, "occurs 0 times"),
        ({"find": "return"}, "occurs 3 times"),
        ({"replace": "return 2 * x"}, "changes nothing"),
        ({"file": "code/nowhere.py"}, "there is no file code/nowhere.py"),
        ({"why": None}, "missing or unknown fields: why"),
        ({"reason": "x"}, "missing or unknown fields: reason"),
    ],
)
def test_a_mutant_that_does_not_fit_is_refused(project, changes, said):
    with pytest.raises(MutantError, match=said):
        written(project, **changes)


def test_a_name_that_no_mutant_has_is_refused(capsys):
    assert run_mutants.main(["--only", "nobody"]) == 2
    assert "no mutant is called nobody" in capsys.readouterr().err


def test_the_command_explains_itself():
    done = subprocess.run(
        [sys.executable, "-m", "scaling_book.audit.run_mutants", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for option in ("--only", "--quick", "--jobs"):
        assert option in done.stdout


# The mutants of this project


def test_mutants_fit_the_code_and_name_claims_that_exist():
    known = set(slugs())
    for one in read_mutants():
        assert set(one.claims) <= known, one.name
        assert one.why.endswith("."), one.name


def test_every_claim_with_evidence_is_declared_by_a_mutant():
    assert {slug for one in read_mutants() for slug in one.claims} == set(slugs())


def test_patched_python_is_python():
    for one in read_mutants():
        text = one.patched((ROOT / one.file).read_text("utf8"))
        if one.file.endswith(".py"):
            compile(textwrap.dedent(text), one.file, "exec")


def test_the_recorded_table_fits_the_code_and_nothing_survived():
    assert problems(read_record(), slugs(), table_fingerprint(ROOT, read_mutants())) == []
