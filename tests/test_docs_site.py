"""The documentation is whole: every public name, command, option and setting is in it, and it builds without a warning."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer

from kvpacket_rag import (
    RAG,
    DocumentStore,
    GenerationConfig,
    LanguageModelComponent,
    PacketModel,
    PromptStyle,
    errors,
    events,
)
from kvpacket_rag.cli.main import app
from kvpacket_rag.engine.settings import Settings
from kvpacket_rag.store.settings import StoreSettings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["kvpacket_rag", "langchain_kvpacket", "llama_index_kvpacket"])
def test_every_public_name_is_in_the_reference(package):
    named = re.findall(rf"^::: {package}\.(\w+)$", page(f"reference/{package}.md"), re.MULTILINE)
    assert sorted(named) == sorted(importlib.import_module(package).__all__)


def test_every_error_and_event_is_in_the_reference():
    named = set(re.findall(r"^::: kvpacket_rag\.([\w.]+)$", page("reference/results.md"), re.MULTILINE))
    kinds = [(errors, Exception, {"KVPacketError"}), (events, events.Event, {"Event"})]
    for module, kind, elsewhere in kinds:
        for name in module.__all__:
            one = getattr(module, name)
            if isinstance(one, type) and issubclass(one, kind) and name not in elsewhere:
                assert f"{module.__name__.removeprefix('kvpacket_rag.')}.{name}" in named


def commands(command: Any, path: str = "kvpacket") -> list[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    own = [] if below and path != "kvpacket" else [(path, command)]
    return own + [found for name, one in below.items() for found in commands(one, f"{path} {name}")]


COMMANDS = commands(typer.main.get_command(app))


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of a text's tables."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("| ") and not line.startswith("| -")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def options(command: Any) -> dict[str, str]:
    """Names of options with their default as a page shows it: nothing for those that are off, or chosen when needed."""
    shown = {}
    for parameter in command.params:
        names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")]
        none = parameter.default is None or parameter.default is False
        default = "" if none else f"`{getattr(parameter.default, 'value', parameter.default)}`"
        shown.update((name, default) for name in names if name != "--help")
    return shown


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_is_on_its_page_with_its_options_and_their_defaults(name, command):
    section = re.split(r"^##+ ", page("cli.md").split(f"## {name}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    assert f"```\n{name}" in section
    assert {name.strip("`"): default for name, default, _ in rows(section)[1:]} == options(command)


def defaults(callable: Any) -> dict[str, Any]:
    """Arguments of a function or class with their default."""
    parameters = signature(callable).parameters.values()
    return {one.name: None if one.default is one.empty else one.default for one in parameters}


SETTINGS = {
    "DocumentStore.open": defaults(DocumentStore.open),
    "StoreSettings": defaults(StoreSettings),
    "PacketModel.from_pretrained": defaults(PacketModel.from_pretrained),
    "GenerationConfig": defaults(GenerationConfig),
    "PromptStyle": defaults(PromptStyle),
    "RAG": defaults(RAG) | {"style": PromptStyle(), "config": GenerationConfig()},
    "LanguageModelComponent": {
        name: field.get_default() for name, field in LanguageModelComponent.model_fields.items()
    },
}


def settings() -> dict[str, dict[str, str]]:
    """Default as it is shown, by what has the setting and by the setting."""
    (table,) = re.findall(r"(?:^\|.*\n)+", page("settings.md"), re.MULTILINE)
    shown: dict[str, dict[str, str]] = {}
    for where, name, default, meaning in rows(table)[1:]:
        assert meaning, name
        shown.setdefault(where.strip("`"), {})[name.strip("`")] = default
    return shown


@pytest.mark.parametrize("where", SETTINGS)
def test_every_setting_is_in_the_one_table_with_its_default(where):
    shown = settings()[where]
    assert list(shown) == list(SETTINGS[where])
    for name, default in SETTINGS[where].items():
        if shown[name]:
            known = {"PromptStyle": PromptStyle, "GenerationConfig": GenerationConfig}
            assert eval(shown[name].strip("`"), known) == default, name
        else:
            assert default is None, name  # must be given


def test_every_variable_of_the_environment_is_in_the_one_table():
    named = {f"KVPACKET_{name.upper()}" for name in Settings.model_fields}
    named |= {str(one.envvar) for _, command in COMMANDS for one in command.params if getattr(one, "envvar", None)}
    assert named <= set(settings()["environment"])


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
    assert "<li><code>ram_bytes</code>:" in shown  # explained parameters are a list
    for name in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", name.read_text(encoding="utf-8")
        )
        assert [address for address in loaded if "canonical" not in address] == [], name
