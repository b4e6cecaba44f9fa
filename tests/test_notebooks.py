"""The notebooks run from their first cell to their last; the first steps with every cell twice in a row, as people run them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.notebooks import run_notebook
from tests.support.watching import EXAMPLES

pytestmark = pytest.mark.timeout(900)  # with a real model, on one core that others use too


def run(name: str, folder: Path, times: int) -> tuple[list[Any], str]:
    """Run a notebook, every code cell so many times in a row; returns its cells as they were run and all they printed."""
    shutil.copytree(EXAMPLES / "corpus", folder / "corpus")
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [nbformat.v4.new_code_cell(cell.source) for cell in cells for _ in range(times)]
    nbformat.write(notebook, folder / name)
    _, printed = run_notebook(folder / name, folder)
    return nbformat.read(folder / "executed.ipynb", as_version=4).cells, printed


def shown(cells: list[Any]) -> list[str]:
    """The HTML of all outputs, in order."""
    return [
        output.data["text/html"] for cell in cells for output in cell.outputs if "text/html" in output.get("data", {})
    ]


def test_the_first_steps_run_and_running_a_cell_again_changes_nothing(tmp_path: Path):
    cells, printed = run("first_steps.ipynb", tmp_path, 2)
    reports = re.findall(r"(\d+) added, (\d+) unchanged, (\d+) packets built", printed)
    (added, unchanged, built), *others = [tuple(map(int, report)) for report in reports]
    assert (added, unchanged) == (2, 0)
    assert built >= 6
    assert others == [(0, 2, 0)] * 3
    assert "94 days" in printed
    compared = r"First token after [\d,.]+ ms with full prefill, [\d,.]+ ms from packets: \d+\.\d times as fast; the "
    assert len(re.findall(compared, printed)) == 4
    assert re.search(r"prefix +\d+ tokens reused", printed)
    assert re.search(r"packet +\d+ tokens reused +battery-and-charging.md", printed)
    assert re.search(r"question +\d+ tokens computed", printed)
    assert printed.count("all as written: True") == 2
    html = "".join(shown(cells))
    assert html.count("<caption") == 2, "the store"
    assert html.count("1 packet was not stored and had to be built.") == 1, "when first asked"
    assert html.count("<strong>How long does the battery of the Halo 3 last on one charge?</strong>") == 2
    assert all(bar in html for bar in ("Reading 2 of 2 documents", "First place ", "Verifying "))
    assert "Traceback" not in html + printed


def test_an_adapter_is_trained_and_judged(tmp_path: Path):
    cells, printed = run("train_adapter.ipynb", tmp_path, 1)
    assert "8 questions, 4 steps" in printed
    judged = r"held out, parts: before (0\.\d{4}), after (0\.\d{4}), error (0\.\d{4}), accepted: (True|False)"
    ((before, after, error, accepted),) = re.findall(judged, printed)
    rounding = 0.00015
    beyond = float(before) - float(after) - float(error)
    assert beyond > -rounding if accepted == "True" else beyond < rounding
    assert printed.count("What does the magnesium anode cost?\nWith full prefill:") == (2 if accepted == "True" else 1)
    assert printed.count("Not accepted") == (0 if accepted == "True" else 1)
    assert (tmp_path / "notebook-kb" / "parts" / "parts.safetensors").exists() == (accepted == "True")
    assert "Training 4 of 4" in "".join(shown(cells))


@pytest.mark.parametrize("name", ["first_steps.ipynb", "train_adapter.ipynb"])
def test_notebooks_are_kept_without_outputs(name: str):
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbformat.validate(notebook)
    assert all(cell.outputs == [] for cell in notebook.cells if cell.cell_type == "code")
