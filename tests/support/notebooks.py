"""Notebooks run as a user runs them: in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=280, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[3])
"""


def run_notebook(path: Path, folder: Path) -> tuple[str, str]:
    """Run a notebook in a folder; returns its code and all it printed."""
    out = folder / "executed.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(folder), str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cells: list[Any] = [cell for cell in nbformat.read(out, as_version=4).cells if cell.cell_type == "code"]
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    return "\n".join(cell.source for cell in cells), printed
