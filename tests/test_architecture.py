"""The structure of the package: imports point one way, parts are small, and importing has no effects."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "kvpacket_rag"
DOCS = ROOT.parent / "docs"

PARTS = {
    "errors": "exceptions and the checks that raise them",
    "events": "what a store and a build report while they work",
    "display": "what notebooks and terminals show",
    "packets": "what a packet, a fingerprint, an anchor, an adapter and a number format is",
    "engine": "what runs a model",
    "corpus": "documents, chunks, and reading files",
    "retrieval": "embedders, the vector index, filters and search",
    "store": "DocumentStore and what it is made of",
    "answering": "from a question to an answer",
    "training": "training adapters",
    "bench": "measurements",
    "serve": "a knowledge base over HTTP",
    "cli": "the command line",
}
"""The layers, lowest first: a part imports only from parts above it in this list, and modules of a part form no circle."""
ALSO_AT_THE_TOP = {"__init__.py", "__main__.py", "py.typed"}
MOST_ENTRIES = 16
MOST_FILES = 14
"""Python files directly in a folder."""
ENGINE_USERS = ("engine.loading", "training.", "bench.", "cli.fidelity", "cli.speed")
"""What may import `engine.transformers`: the loader, and what needs gradients, attention or the library itself."""

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in ROOT.rglob("*.py")
    if "migrations" not in path.parts
}
MODULES = {name: path for name, path in FILES.items() if not name.endswith(("__init__", "__main__"))}
LEVEL = {name: number for number, name in enumerate(PARTS)}
ORDER = " < ".join(PARTS)


def part(name: str) -> str:
    return name.split(".")[0]


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvpacket_rag":
            base = node.module.removeprefix("kvpacket_rag").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                found.add(inner if inner in MODULES else base)
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("kvpacket_rag.") for alias in node.names if "kvpacket_rag." in alias.name}
    return found - {""}


IMPORTS = {name: imports(path) for name, path in MODULES.items()}


def test_the_top_of_the_package_holds_parts_only():
    entries = {path.name for path in ROOT.iterdir() if path.is_file() or any(path.rglob("*.py"))}
    for name in sorted(entries - ALSO_AT_THE_TOP):
        stem = name.removesuffix(".py")
        assert stem in PARTS, f"kvpacket_rag/{name} belongs into one of the parts: " + "; ".join(
            f"{one}/ ({about})" for one, about in PARTS.items() if (ROOT / one).is_dir()
        )
    assert len(entries) <= MOST_ENTRIES


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES.values()} - {ROOT}), ids=str)
def test_a_part_is_small_and_says_what_belongs_there(folder):
    files = sorted(path.name for path in folder.glob("*.py"))
    assert len(files) <= MOST_FILES, (
        f"{folder} holds {len(files)} files: give what belongs together a folder of its own"
    )
    assert "__init__.py" in files
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert "imports" in text, f"{folder}/__init__.py does not say what the part may import"


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name):
    for imported in IMPORTS[name]:
        assert LEVEL[part(imported)] <= LEVEL[part(name)], (
            f"{name} imports {imported}, but {part(name)} is a lower layer than {part(imported)} ({ORDER}). "
            f"Move {name} into {part(imported)}/ or a part above it, or move what it needs down into {part(name)}/."
        )


def test_modules_form_no_circle():
    def reach(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"circle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for imported in sorted(IMPORTS.get(name, ())):
                reach(imported, (*path, name))
            done.add(name)

    done: set[str] = set()
    for name in MODULES:
        reach(name, ())


@pytest.mark.parametrize("name", MODULES)
def test_only_an_engine_touches_the_models_of_its_library(name):
    text = MODULES[name].read_text(encoding="utf-8")
    if name.startswith("engine.transformers."):
        return
    if not name.startswith(ENGINE_USERS):
        for imported in IMPORTS[name]:
            assert not imported.startswith("engine.transformers"), (
                f"{name} imports {imported}; use the protocol in engine/protocol.py, and engine.loading to load a model."
            )
    allowed = {"display.progress": "transformers.utils", "engine.chat": "tokenizers"}
    for line in text.splitlines():
        if line.strip().startswith(("import transformers", "from transformers", "from tokenizers")):
            assert allowed.get(name, "-") in line, f"{name}: {line} belongs into engine/transformers/"
    assert "._hf" not in text


def test_the_drawing_of_the_layers_is_the_one_that_is_tested():
    page = (DOCS / "concepts.md").read_text(encoding="utf-8")
    drawn = [line for line in page.partition("## How the code is layered")[2].splitlines() if line.startswith("  ")]
    named = [word for line in drawn for word in line.split() if word.rstrip("/") in PARTS and word.endswith("/")]
    assert [word.rstrip("/") for word in named] == [name for name in reversed(PARTS) if (ROOT / name).is_dir()]


@pytest.mark.parametrize("name", FILES)
def test_files_are_short(name):
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("name", MODULES)
def test_functions_are_short(name):
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{name}.{node.name}"


@pytest.mark.parametrize("name", sorted(set(FILES) - {"bench.speed.peers"}))  # which does what others do
def test_nothing_is_pickled(name):
    text = FILES[name].read_text(encoding="utf-8")
    assert not any(word in text for word in ("import pickle", "torch.load(", "torch.save(", "joblib"))


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, kvpacket_rag, kvpacket_rag.cli.main\n"
        "heavy = {'torch', 'transformers', 'faiss', 'sqlalchemy', 'sentence_transformers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_all_importable_and_listed():
    import kvpacket_rag

    assert sorted(kvpacket_rag._HOMES) == sorted(set(kvpacket_rag.__all__) - {"__version__"})
    for name in kvpacket_rag.__all__:
        assert getattr(kvpacket_rag, name).__doc__ or name == "__version__"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kvpacket_rag.nothing  # noqa: B018


def test_the_recorded_migrations_make_the_declared_tables(tmp_path):
    import sqlalchemy as sa

    from kvpacket_rag.store.database import schema
    from kvpacket_rag.store.database.database import Database
    from kvpacket_rag.store.database.sqlite import SQLite

    Database(SQLite(tmp_path / "store.db")).close()
    made = sa.MetaData()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    made.reflect(engine)
    engine.dispose()
    for name, table in schema.metadata.tables.items():
        assert {(c.name, str(c.type), c.nullable) for c in made.tables[name].columns} == {
            (c.name, str(c.type), c.nullable) for c in table.columns
        }
        assert {i.name for i in table.indexes} == {i.name for i in made.tables[name].indexes}


INTEGRATIONS = {
    f"{path.parent.name}.{path.stem}": path for path in sorted((ROOT.parent / "integrations").glob("*/*.py"))
}


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_integrations_use_the_public_names_only_and_are_short(name):
    tree = ast.parse(INTEGRATIONS[name].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvpacket_rag"):
            assert node.module in ("kvpacket_rag", "kvpacket_rag.errors"), f"{name}: {node.module}"
        if isinstance(node, ast.Import):
            assert all(not alias.name.startswith("kvpacket_rag.") for alias in node.names)
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{name}.{node.name}"
    assert len(INTEGRATIONS[name].read_text(encoding="utf-8").splitlines()) <= 300


FRAMEWORKS = [
    ("langchain_kvpacket", "langchain_core", "ChatKVPacket", "langchain"),
    ("llama_index_kvpacket", "llama_index.core", "KVPacketLLM", "llama-index"),
]


@pytest.mark.parametrize(("package", "framework", "name", "extra"), FRAMEWORKS)
def test_importing_an_integration_loads_no_framework_and_a_missing_one_says_what_to_install(
    package, framework, name, extra
):
    code = (
        f"import sys, {package}\n"
        f"assert not {{'{framework}', 'torch'}} & set(sys.modules)\n"
        f"sys.modules['{framework}'] = None\n"
        f"try:\n    {package}.{name}\n"
        f"except ImportError as error:\n    assert \"pip install 'kvpacket-rag[{extra}]'\" in str(error), error\n"
        "else:\n    sys.exit('no error')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("package", "other"), [(FRAMEWORKS[0], FRAMEWORKS[1]), (FRAMEWORKS[1], FRAMEWORKS[0])])
def test_an_integration_does_not_need_the_other_framework(package, other):
    code = f"import sys\nsys.modules['{other[1].split('.')[0]}'] = None\nfrom {package[0]} import *"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", [row[0] for row in FRAMEWORKS])
def test_every_public_name_of_an_integration_can_be_imported(package):
    module = importlib.import_module(package)
    assert sorted(module._HOMES) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018
