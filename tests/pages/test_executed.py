"""Every cell of every chapter has been executed, and its notebook can be taken along."""

from pathlib import Path

import nbformat
import pytest

from scaling_book.site.execution import notebook_pages

ROOT = Path(__file__).parents[2]
PAGES = [page.relative_to(ROOT).with_suffix("") for page in notebook_pages(ROOT)]


def test_each_chapter_has_cells():
    chapters = {page.parts[1][0] for page in PAGES if page.parts[0] == "chapters"}
    assert chapters >= set("123456")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_notebook_holds_every_output(page, site):
    notebook = nbformat.read(site / "_sources" / f"{page}.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    errors = [
        output
        for cell in cells
        for output in cell.outputs
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
    ]
    assert errors == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_page_shows_the_outputs(page, site):
    html = (site / f"{page}.html").read_text("utf8")
    notebook = nbformat.read(site / "_sources" / f"{page}.ipynb", as_version=4)
    printed = [
        output.text.strip().splitlines()[0]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream" and output.text.strip()
    ]
    for line in printed:
        assert line.split()[0] in html
