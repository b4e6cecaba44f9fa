"""The example notebook runs from its first cell to its last, and packets are faster."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs_and_needs_three_changed_lines(tmp_path: Path):
    shutil.copytree(EXAMPLES / "corpus", tmp_path / "corpus")
    notebook = nbformat.read(EXAMPLES / "langchain.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )
    assert printed.count("94 days") == 2  # before and after
    assert re.search(r"before \d+ ms, after \d+ ms: \d+\.\d times as fast", printed)
    assert "'cache_read': 0" not in printed
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert re.findall(r"# (\d)$", code, re.MULTILINE) == ["1", "2", "3"]
