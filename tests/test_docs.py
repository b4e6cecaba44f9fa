"""What the documentation shows works, and everything public is shown."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import typer

import kvpacket_rag
from kvpacket_rag.cli.main import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = README + "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_programs_in_the_readme_run_one_after_another(tmp_path, monkeypatch, capsys):
    corpus = tmp_path / "examples" / "corpus"
    corpus.mkdir(parents=True)
    for name in ("battery-and-charging.md", "company-history.md"):
        shutil.copy(ROOT / "examples" / "corpus" / name, corpus / name)
    monkeypatch.chdir(tmp_path)
    printed = []
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), {})
        printed.append(capsys.readouterr().out)
    assert "battery-and-charging.md" in printed[0]
    assert all("94 days" in text for text in printed)


def test_every_command_is_in_the_readme():
    commands = typer.main.get_command(app).commands
    assert set(commands) >= {"add", "ask", "ls", "rm", "info", "verify", "gc", "models", "bench"}
    for name in commands:
        assert f"kvpacket {name}" in README


def test_every_part_and_every_file_named_on_the_architecture_page_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "kvpacket_rag"
    for path in package.iterdir():
        if path.is_dir() and any(path.glob("*.py")):
            assert f"| `{path.name}/` |" in page, path
    for named in re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", page):
        assert (package / named).exists() or (ROOT / named).exists(), named


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_version_is_in_one_place():
    assert kvpacket_rag.__version__ not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
