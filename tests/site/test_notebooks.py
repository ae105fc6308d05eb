"""The notebook that a reader takes along."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scaling_book.site.notebooks import cleaned, leaks, page_with_cells
from scaling_book.site.paths import PROJECT_ROOT

PAGE = """---
file_format: mystnb
kernelspec: {name: python3}
---

(a-label)=
# Title

Text with (parentheses)=signs.

```{code-cell} python
:tags: [hide-input]
1 + 1
```
"""


def executed(*outputs: nbformat.NotebookNode) -> nbformat.NotebookNode:
    cell = new_code_cell("1 + 1", outputs=list(outputs), execution_count=3)
    cell.metadata.update({"tags": ["hide-input"], "execution": {"iopub.status.busy": "12:00"}})
    return new_notebook(
        metadata={"kernelspec": {"name": "other", "display_name": "Other"}, "wikitext": 1},
        cells=[new_markdown_cell("(a-label)=\n# Title"), cell],
    )


def shown(**data: str) -> nbformat.NotebookNode:
    return new_output("display_data", {k.replace("_", "/"): v for k, v in data.items()})


def test_a_page_with_cells_is_recognised(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    notebook = page_with_cells(page)
    assert notebook is not None
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code"]
    page.write_text("# Only text\n")
    assert page_with_cells(page) is None


def test_labels_stay_out_and_text_stays_in(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    notebook = page_with_cells(page)
    assert notebook is not None
    source = cleaned(notebook, "chapters/page").cells[0].source
    assert source == "# Title\n\nText with (parentheses)=signs."


def test_only_what_a_reader_needs_is_kept() -> None:
    glue = new_output("display_data", {"application/papermill.record/text/plain": "1.0"})
    notebook = cleaned(executed(shown(text_plain="2"), glue), "chapters/page")
    nbformat.validate(notebook)
    code = notebook.cells[1]
    assert [output.data for output in code.outputs] == [{"text/plain": "2"}]
    assert code.metadata == {"tags": ["hide-input"]}
    assert code.execution_count == 3
    assert [cell.id for cell in notebook.cells] == ["page-0", "page-1"]
    assert notebook.metadata["kernelspec"]["display_name"] == "Python 3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


@pytest.mark.parametrize(
    "text",
    [
        "<object object at 0x7f3c2a1b5d90>",
        "<function f at 0x104e9b0>",
        "pointer 0x7f3c2a1b5d90",
        f"File {PROJECT_ROOT}/code/x.py",
    ],
)
def test_leaks_are_found(text: str) -> None:
    assert [cell for cell, _ in leaks(executed(shown(text_plain=text)))] == [1]
    stream = new_output("stream", name="stdout", text=text)
    error = new_output("error", ename="E", evalue="", traceback=["first", text])
    assert len(list(leaks(executed(stream, error)))) == 2


@pytest.mark.parametrize(
    "text", ["0x7c00", "0x7f800000", "0x7ff0000000000000", "at 0x10", "#24303c"]
)
def test_bits_of_a_float_are_no_address(text: str) -> None:
    assert list(leaks(executed(shown(text_plain=text)))) == []
