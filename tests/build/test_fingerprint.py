"""An edit that could change a result makes every page run again; an edit of the site does not."""

import shutil
from pathlib import Path

import pytest

from scaling_book.site import fingerprint
from scaling_book.site.fingerprint import execution_fingerprint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A copy of what is tracked by the fingerprint, and of the site's code that is not."""
    for name in ("code", "data", "requirements.txt", "matplotlibrc", "chapters"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def test_is_stable_and_blind_to_where_the_project_lies(project):
    assert execution_fingerprint(project) == execution_fingerprint(ROOT)


@pytest.mark.parametrize(
    "name",
    [
        "code/attention_scaling/softmax.py",
        "code/scaling_book/evidence/variance_control.py",
        "requirements.txt",
        "matplotlibrc",
        "data/new.csv",
    ],
)
def test_changes_with_what_a_cell_can_read(project, name):
    before = execution_fingerprint(project)
    (project / name).parent.mkdir(exist_ok=True)
    with (project / name).open("a") as file:
        file.write("\n# edited\n")
    assert execution_fingerprint(project) != before


@pytest.mark.parametrize(
    "name",
    [
        "code/scaling_book/site/static/book.css",
        "code/scaling_book/site/build.py",
        "chapters/new.md",
    ],
)
def test_stays_after_an_edit_of_pages_and_site(project, name):
    before = execution_fingerprint(project)
    with (project / name).open("a") as file:
        file.write("\n/* edited */\n")
    assert execution_fingerprint(project) == before


def test_changes_with_an_installed_version(monkeypatch):
    before = execution_fingerprint(ROOT)
    monkeypatch.setattr(fingerprint.metadata, "version", lambda name: "0")
    assert execution_fingerprint(ROOT) != before
