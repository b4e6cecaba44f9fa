"""What the pages of the documentation show works: programs run, commands and their options exist.

Each page's blocks of Python run in order in one namespace, in a folder that holds some files of the examples' corpus and a
knowledge base `kb` of them. A block that cannot run here (a server, a key of somebody else) is fenced as `python no-run`.
"""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from kvpacket_rag.cli.main import app
from kvpacket_rag.engine.transformers import packet_model
from kvpacket_rag.engine.transformers.loading import Loaded
from kvpacket_rag.store.document_store import DocumentStore

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CORPUS = ("battery-and-charging.md", "cleaning.md", "company-history.md")
FENCE = re.compile(r"^([ ]*)```([^\n`]*)\n(.*?)^\1```[ ]*$", re.DOTALL | re.MULTILINE)
MOST_NOT_RUN = 5


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Fenced blocks of a page with this info string: (lines before the first of the block, text)."""
    text = page.read_text(encoding="utf-8")
    found = [match for match in FENCE.finditer(text) if match[2].strip() == language]
    return [(text.count("\n", 0, match.start(3)), match[3]) for match in found]


PAGES = {path.relative_to(ROOT).as_posix(): path for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]}
PROGRAMS = [name for name, path in PAGES.items() if name != "README.md" and blocks(path, "python")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder to run pages in, and a knowledge base of its documents to begin each with."""
    folder = tmp_path_factory.mktemp("docs")
    work, kept = folder / "work", folder / "kb"
    corpus = work / "examples" / "corpus"
    corpus.mkdir(parents=True)
    for name in CORPUS:
        shutil.copy(ROOT / "examples" / "corpus" / name, corpus / name)
    with DocumentStore.open(work / "kb", model="smollm2-135m-instruct") as kb:
        kb.add_paths([corpus])
        kb.build_missing(0)
    (work / "kb").rename(kept)
    return work, kept


@pytest.fixture(scope="module")
def weights() -> Callable[..., Loaded]:
    """Loads each model once, for all pages."""
    return functools.cache(packet_model.load)


@pytest.fixture
def work(made: tuple[Path, Path], weights: Callable[..., Loaded], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to run a page in, with nothing in it from pages before."""
    folder, kept = made
    for path in folder.iterdir():
        if path.name != "examples":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(kept, folder / "kb")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(packet_model, "load", weights)
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_a_page_run_one_after_another(name, work):
    page = PAGES[name]
    for _, text in blocks(page, ""):  # keys that a page makes
        for line in text.splitlines():
            if line.startswith("openssl "):
                if shutil.which("openssl") is None:
                    pytest.skip("openssl is not installed")
                subprocess.run(shlex.split(line), check=True, cwd=work)
    namespace = {"__name__": "__main__"}
    for before, text in blocks(page, "python"):
        exec(compile("\n" * before + text, str(page), "exec"), namespace)  # so that errors name the page's own lines


def test_few_programs_are_not_run():
    left = [f"{name}:{line}" for name, path in PAGES.items() for line, _ in blocks(path, "python no-run")]
    assert len(left) <= MOST_NOT_RUN, left


def test_every_fence_is_of_a_known_kind():
    for name, path in PAGES.items():
        kinds = {match[2].strip() for match in FENCE.finditer(path.read_text(encoding="utf-8"))}
        assert kinds <= {"", "python", "python no-run", "json", "yaml", "dockerfile"}, name


def shell_lines(path: Path) -> list[tuple[int, str]]:
    """Lines of a page's plain blocks that begin with `kvpacket`, continued ones joined: (number, line)."""
    found = []
    for before, text in blocks(path, ""):
        number = before
        for line in text.replace("\\\n", "\0").splitlines():
            number += 1
            if line.strip().startswith("kvpacket "):
                found.append((number, line.replace("\0", " ").strip()))
            number += line.count("\0")
    return found


def parse(line: str) -> None:
    """Parse a command line as the command would, without doing anything. Raises what the command raises."""
    # An ellipsis stands for arguments given before.
    words = [word for word in shlex.split(line, comments=True)[1:] if word != "…"]
    idle(typer.main.get_command(app)).main(words, standalone_mode=False)


def idle(command: Any) -> Any:
    """Make a command, and all below it, do nothing."""
    command.callback = lambda **_: None
    for one in getattr(command, "commands", {}).values():
        idle(one)
    return command


SHELL = [(f"{name}:{number}", line) for name, path in PAGES.items() for number, line in shell_lines(path)]


@pytest.mark.parametrize(("where", "line"), SHELL)
def test_every_command_line_is_one(where, line):
    parse(line)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("kvpacket tell kb", "No such command"),
        ("kvpacket ask kb question --loud", "No such option"),
        ("kvpacket ask kb", "Missing"),
        ("kvpacket add kb a --chunk-tokens b", "valid integer"),
    ],
)
def test_a_command_line_that_is_none_would_be_noticed(line, told):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one depends on the release of typer
        parse(line)
    assert told in str(getattr(caught.value, "message", "")) + str(caught.value)


def options(command: Any) -> set[str]:
    """Names of the options of a command and of all below it."""
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options(one) for one in getattr(command, "commands", {}).values()))


def test_commands_and_options_in_running_text_exist():
    root = typer.main.get_command(app)
    every = options(root) | {"--help"}
    for name, path in PAGES.items():
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for code in re.findall(r"`([^`\n]+)`", text):
            first, *words = code.split()
            command: Any = root
            if first == "kvpacket":
                while words and words[0] in getattr(command, "commands", {}):
                    command = command.commands[words.pop(0)]
                if words and hasattr(command, "commands"):
                    assert words[0].startswith(("-", "…", "COMMAND")), f"{name}: {code}"
            elif first.startswith("--"):
                words.append(first)
            known = every if command is root else options(command)
            for word in words:
                if first in ("kvpacket", word) and word.startswith("--"):
                    assert word.split("=")[0] in known, f"{name}: {code}"
