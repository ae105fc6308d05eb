"""The code is clean, typed, spelled, and its arrows point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ROOT / "code"

# What each part may import of ours. Nothing may import `site`; the library imports nothing of ours.
ALLOWED = {
    "attention_scaling": {"attention_scaling"},
    "scaling_book.lab": {"attention_scaling", "scaling_book.lab"},
    "scaling_book.evidence": {"attention_scaling", "scaling_book.lab", "scaling_book.evidence"},
    "scaling_book.audit": {
        "attention_scaling",
        "scaling_book",
        "scaling_book.evidence",
        "scaling_book.audit",
    },
    "scaling_book.site": {
        "attention_scaling",
        "scaling_book.lab",
        "scaling_book.evidence",
        "scaling_book.site",
    },
    "scaling_book": set(),
}
SOURCES = sorted(path.relative_to(CODE) for path in CODE.rglob("*.py"))


def run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def tracked(*suffixes: str) -> list[str]:
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [name for name in files if name.endswith(suffixes) and (ROOT / name).is_file()]


def test_ruff_finds_nothing():
    run("ruff", "check", ".")


def test_ruff_would_format_nothing():
    run("ruff", "format", "--check", ".")


def test_types_hold():
    run("mypy")


def test_spelling():
    names = tracked(".md", ".py", ".yml", ".toml", ".css", ".js", ".cff")
    assert len(names) > 30
    run("codespell_lib", *names)


def part_of(module: str) -> str:
    """Return the part of the project that `module` belongs to."""
    return max((part for part in ALLOWED if f"{module}.".startswith(f"{part}.")), key=len)


def ours(tree: ast.AST) -> set[str]:
    """Return the modules of this project that a syntax tree imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports of this project are absolute"
            # `from scaling_book import site` names a module too
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in {"attention_scaling", "scaling_book"}}


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_imports_point_one_way(source):
    module = ".".join(source.with_suffix("").parts)
    for imported in ours(ast.parse((CODE / source).read_text("utf8"))):
        assert part_of(imported) in ALLOWED[part_of(module)], f"{module} imports {imported}"


def test_every_part_is_looked_at():
    assert {part_of(".".join(source.with_suffix("").parts)) for source in SOURCES} >= {
        "attention_scaling",
        "scaling_book.evidence",
        "scaling_book.site",
    }


def test_the_library_needs_numpy_and_torch_only():
    for source in sorted((CODE / "attention_scaling").glob("*.py")):
        allowed = {"attention_scaling", "numpy", "torch"} | set(sys.stdlib_module_names)
        # the figure style is matplotlib's, and is not imported by the others
        if source.name == "style.py":
            allowed |= {"matplotlib", "matplotlib_inline", "IPython"}
        # the command that probes a model from a folder loads it with transformers, and says so if
        # that is missing
        if source.name == "_probe_command.py":
            allowed |= {"transformers"}
        for node in ast.walk(ast.parse(source.read_text("utf8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in allowed, f"{source.name} imports {name}"
