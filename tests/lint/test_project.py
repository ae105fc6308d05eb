"""Licences, citation, locks and commands agree with one another."""

import json
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attention_scaling

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
AUTHOR = "Why √d_k contributors"


def locked() -> dict[str, str]:
    lines = [
        line
        for name in ("requirements.txt", "requirements-test.txt")
        for line in (ROOT / name).read_text("utf8").splitlines()
        if line and not line.startswith(("#", "-"))
    ]
    return {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }


def ranges() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    named = [*PROJECT["dependencies"], *(entry for group in extras.values() for entry in group)]
    requirements = [Requirement(entry) for entry in named]
    return [one for one in requirements if one.name != PROJECT["name"]]


@pytest.mark.parametrize("requirement", ranges(), ids=lambda one: one.name)
def test_the_lock_keeps_to_the_ranges(requirement):
    version = locked()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), f"{requirement} is locked at {version}"


@pytest.mark.parametrize("requirement", ranges(), ids=lambda one: one.name)
def test_every_dependency_has_its_reason(requirement):
    assert requirement.name.lower() in (ROOT / "CONTRIBUTING.md").read_text("utf8").lower()


def test_the_lock_is_complete():
    names = locked()
    for name in names:
        for needed in metadata.requires(name) or []:
            requirement = Requirement(needed)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted = canonicalize_name(requirement.name)
                # the CUDA packages are torch's own affair
                if not re.match(r"nvidia-|cuda-|triton", wanted):
                    assert wanted in names, f"{name} needs {wanted}, which no lock file names"


def test_the_book_lock_ends_with_the_project():
    assert (ROOT / "requirements.txt").read_text("utf8").splitlines()[-1] == "-e ."


def test_npm_lock_names_no_host():
    lock = json.loads((ROOT / "package-lock.json").read_text("utf8"))
    assert lock["packages"][""]["dependencies"] == {"katex": "0.19.1"}
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]


def test_versions_agree():
    versions = {
        PROJECT["version"],
        CITATION["version"],
        json.loads((ROOT / "package.json").read_text("utf8"))["version"],
        attention_scaling.__version__,
        metadata.version(PROJECT["name"]),
    }
    assert len(versions) == 1
    assert f"## {PROJECT['version']}, {CITATION['date-released']}" in (
        ROOT / "CHANGELOG.md"
    ).read_text("utf8")


def test_citation_file_has_what_cff_demands():
    # The required keys of the Citation File Format 1.2.0, and the two licences.
    assert CITATION["cff-version"] == "1.2.0"
    assert {"authors", "cff-version", "message", "title"} <= CITATION.keys()
    assert CITATION["authors"] == [{"name": AUTHOR}]
    assert CITATION["license"] == ["BSD-3-Clause", "CC-BY-4.0"]


def test_licences_are_the_ones_named():
    code, text = (ROOT / "LICENSE").read_text("utf8"), (ROOT / "LICENSE-text").read_text("utf8")
    assert PROJECT["license"] == "BSD-3-Clause"
    assert code.startswith("BSD 3-Clause License")
    assert AUTHOR in code
    assert len(re.findall(r"^\d\. ", code, re.M)) == 3
    assert "Creative Commons Attribution 4.0 International Public License" in text
    assert re.findall(r"^Section (\d) ", text, re.M) == list("12345678")


def test_make_help_lists_every_command():
    makefile = (ROOT / "Makefile").read_text("utf8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert sorted(line.split()[0] for line in shown.splitlines()) == sorted(phony)


def test_ci_runs_the_command_of_the_readme():
    assert "make test" in (ROOT / "README.md").read_text("utf8")
    assert (ROOT / ".ci" / "run").read_text("utf8").splitlines()[-1] == "exec make test"


def test_workflows_name_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text("utf8")
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        steps = [
            step.get("run", "")
            for job in yaml.safe_load(workflow.read_text("utf8"))["jobs"].values()
            for step in job["steps"]
        ]
        commands = "\n".join(steps)
        assert ".ci/run" in commands or workflow.name != "book.yml"
        for target in re.findall(r"\bmake (\w+)", commands):
            assert re.search(rf"^{target}:", makefile, re.M), f"{workflow.name}: make {target}"
