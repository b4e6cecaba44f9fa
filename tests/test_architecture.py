"""The structure of the package: imports point one way, rooms are small, nothing happens on import."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "kvpacket_rag"

# From bottom to top. A file imports only from lines above its own.
LAYERS = [
    ["errors", "settings", "quiet", "finding", "threads", "journal", "events", "tally"],
    ["rope", "quantised", "fidelity", "samples", "plots", "backends", "durable", "metrics"],
    ["packet", "synthetic", "blobs"],
    ["domains", "remote"],
    ["adapter", "catalogue"],
    ["shipped"],
    ["model.grouped", "model.memory", "model.turns"],
    ["model.cache", "model.chat", "model.fixed", "model.forward", "model.identity", "model.layout", "model.size"],
    ["model.loading"],
    ["model.packet_model"],
    ["model.recompute", "model.reference", "model.shapes"],
    ["model"],
    ["chunking", "embedding", "anchor", "schema"],
    ["precision"],
    ["readers", "index", "database", "assembly", "questions", "bundle"],
    ["cap", "codec", "ram", "recipe", "signing"],
    ["store", "retrieval", "generator", "store_settings", "teacher", "opening"],
    ["configuration"],
    ["building", "inspection"],
    ["display"],
    ["answer"],
    ["reading", "comparison", "loading", "exporting", "importing"],
    ["remaking", "ingestion", "bundled", "removing"],
    ["documents"],
    ["rag", "conversation", "adopting"],
    ["component"],
    ["baselines.base"],
    ["baselines.full", "baselines.packets", "baselines.repair"],
    ["baselines.epic", "baselines.cacheblend", "baselines.samkv", "baselines.a3", "baselines.random_tokens"],
    ["baselines.registry"],
    ["baselines"],
    ["training.loss", "training.checkpoint", "training.gate", "training.parts"],
    ["training.config", "training.lessons"],
    ["training.student"],
    ["training.distill"],
    ["training.report", "training.writing", "tuning"],
    ["training"],
    ["bench.environment", "bench.timing"],
    ["bench.material"],
    ["bench.fidelity", "bench.report"],
    [
        "bench.build",
        "bench.care",
        "bench.decode",
        "bench.fidelity_report",
        "bench.load",
        "bench.peers",
        "bench.store",
        "bench.ttft",
    ],
    ["terminal"],
    ["serve.wire"],
    ["serve.failures", "serve.gate"],
    ["serve.chat", "serve.library"],
    ["serve.app"],
    ["progress", "cli_bench", "cli_store"],
    ["cli_serve"],
    ["cli_speed"],
    ["cli_train"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: number for number, names in enumerate(LAYERS) for name in names}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in ROOT.rglob("*.py")
    if "migrations" not in path.parts
}
MODULES = {name: path for name, path in FILES.items() if not name.endswith("__init__")}


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it, as the deepest name in `LEVEL`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvpacket_rag"):
            base = node.module.removeprefix("kvpacket_rag").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                found.add(inner if inner in LEVEL else base)
    return found - {""}


def test_every_file_has_its_place():
    assert set(MODULES) == set(LEVEL) - {"model", "baselines", "training"}


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name):
    for imported in imports(MODULES[name]):
        assert LEVEL[imported] < LEVEL[name], f"{name} imports {imported}"


@pytest.mark.parametrize("name", MODULES)
def test_only_the_model_folder_touches_hugging_face_models(name):
    text = MODULES[name].read_text(encoding="utf-8")
    if not name.startswith("model."):
        allowed = {"quiet": "transformers.utils", "chunking": "tokenizers"}
        for line in text.splitlines():
            if line.strip().startswith(("import transformers", "from transformers", "from tokenizers")):
                assert allowed.get(name, "-") in line, f"{name}: {line}"
        assert "._hf" not in text


@pytest.mark.parametrize("name", FILES)
def test_files_are_short(name):
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("name", MODULES)
def test_functions_are_short(name):
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{name}.{node.name}"


@pytest.mark.parametrize("name", sorted(set(FILES) - {"bench.peers"}))  # which does what others do
def test_nothing_is_pickled(name):
    text = FILES[name].read_text(encoding="utf-8")
    assert not any(word in text for word in ("import pickle", "torch.load(", "torch.save(", "joblib"))


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, kvpacket_rag, kvpacket_rag.cli\n"
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

    from kvpacket_rag import schema
    from kvpacket_rag.backends import SQLite
    from kvpacket_rag.database import Database

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
