"""The example notebook runs from its first cell to its last, and three lines are others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.support.notebooks import run_notebook
from tests.support.watching import EXAMPLES


def test_the_notebook_runs_and_needs_three_changed_lines(tmp_path: Path):
    shutil.copytree(EXAMPLES / "corpus", tmp_path / "corpus")
    code, printed = run_notebook(EXAMPLES / "langchain.ipynb", tmp_path)
    assert printed.count("94 days") == 2  # before and after
    assert re.search(r"before \d+ ms, after \d+ ms: \d+\.\d times as fast", printed)
    assert "'cache_read': 0" not in printed
    assert re.findall(r"# (\d)$", code, re.MULTILINE) == ["1", "2", "3"]
