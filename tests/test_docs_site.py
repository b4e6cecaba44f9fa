"""The documentation is whole: every public name, command, option and setting is in it, and it builds without a warning."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer

from kvpacket_rag import RAG, DocumentStore, GenerationConfig, PromptStyle
from kvpacket_rag.cli import app
from kvpacket_rag.settings import Settings
from kvpacket_rag.store_settings import StoreSettings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["kvpacket_rag", "langchain_kvpacket", "llama_index_kvpacket"])
def test_every_public_name_is_in_the_reference(package):
    reference = page(f"reference/{package}.md")
    named = set(re.findall(rf"::: {package}\.(?:[\w.]+\.)?(\w+)", reference)) | set(re.findall(r"`(\w+)`", reference))
    public = set(importlib.import_module(package).__all__) - {"__version__"}
    assert public - named == set()


def commands(command: Any, path: str = "kvpacket") -> list[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    own = [] if below else [(path, command)]
    return own + [found for name, one in below.items() for found in commands(one, f"{path} {name}")]


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_is_on_its_page_with_every_option(name, command):
    text = page("cli.md")
    start = text.index(f"## {name}\n")
    section = text[start : text.find(f"\n{text[:start].rsplit(chr(10), 1)[-1]}## ", start + 3)]
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    shared = re.findall(r"`(--[\w-]+)", text[: text.index("## kvpacket add")]) if "## kvpacket add" in text else []
    missing = {option for option in options if f"`{option}" not in section and option not in shared}
    assert missing - {"--help"} == set()


SETTINGS = {
    "DocumentStore.open": [name for name in signature(DocumentStore.open).parameters],
    "StoreSettings": [field.name for field in fields(StoreSettings)],
    "GenerationConfig": [field.name for field in fields(GenerationConfig)],
    "PromptStyle": [field.name for field in fields(PromptStyle)],
    "RAG": [field.name for field in fields(RAG)],
    "environment": [f"KVPACKET_{name.upper()}" for name in Settings.model_fields],
    "environment of the command": sorted(
        {str(one.envvar) for _, command in COMMANDS for one in command.params if getattr(one, "envvar", None)}
    ),
}


@pytest.mark.parametrize("where", SETTINGS)
def test_every_setting_is_in_the_one_table(where):
    text = page("settings.md")
    (table,) = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", table))
    assert set(SETTINGS[where]) - named == set()


def test_links_between_pages_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stdout + built.stderr
    shown = (tmp_path / "site" / "reference" / "kvpacket_rag.html").read_text(encoding="utf-8")
    assert "Answers a question" in shown or "Answer a question." in shown
    for name in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", name.read_text(encoding="utf-8")
        )
        assert [address for address in loaded if "canonical" not in address] == [], name
