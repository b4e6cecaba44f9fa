"""The wheel, installed alone in an empty environment, and with each extra in turn: `python tests/extras.py FOLDER`.

One environment holds the package without extras. Each extra gets an environment of its own that sees the first, so that
only what the extra brings is installed, and nothing that another brings is there.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIP = [
    "-m",
    "pip",
    "--quiet",
    "--disable-pip-version-check",
    "install",
    "--no-compile",
    "-c",
    str(ROOT / "constraints.txt"),
]
ALONE = """
import importlib.resources, importlib.metadata, kvpacket_rag
from kvpacket_rag.errors import MissingDependencyError, require
for name in kvpacket_rag.__all__: getattr(kvpacket_rag, name)
for package in ("kvpacket_rag", "langchain_kvpacket", "llama_index_kvpacket"):
    assert (importlib.resources.files(package) if package == "kvpacket_rag" else importlib.metadata.distribution("kvpacket-rag").locate_file(package)).joinpath("py.typed").is_file(), package
assert importlib.resources.files("kvpacket_rag.serve").joinpath("page", "index.html").is_file()
for module, extra in (("fastapi", "serve"), ("psycopg", "postgres"), ("s3fs", "s3"), ("prometheus_client", "metrics"), ("pypdf", "readers")):
    try: require(module, extra=extra, purpose="This")
    except MissingDependencyError as error: assert f"kvpacket-rag[{extra}]" in str(error), error
    else: raise AssertionError(f"{module} comes without its extra")
"""
EXTRAS = {
    "readers": "import pypdf, bs4, docx, kvpacket_rag.corpus.readers",
    "bench": "import matplotlib, kvpacket_rag.bench.report",
    "postgres": "import psycopg; from kvpacket_rag.store.database.postgresql import PostgreSQL",
    "s3": "import s3fs; from kvpacket_rag.store.blobs.object_store import blobs_at; blobs_at('s3://bucket/prefix', 'x', None, 0)",
    "sign": "import cryptography, kvpacket_rag.store.bundles.signing",
    "metrics": "from kvpacket_rag import Metrics; Metrics()",
    "serve": "from kvpacket_rag.serve.app import create_app",
    "langchain": "from langchain_kvpacket import *",
    "llama-index": "from llama_index_kvpacket import *",
}
"""What must work with an extra. Not here: `peers` compiles llama.cpp, `hub`, `docs` and `dev` bring no code of this package to life."""


def python(folder: Path) -> str:
    """The interpreter of an environment."""
    return str(folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))


def packages(folder: Path) -> Path:
    """Where an environment keeps what is installed."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))


def call(folder: Path, *arguments: str) -> None:
    """Run the interpreter of an environment, away from the source."""
    subprocess.run([python(folder), *arguments], check=True, cwd=folder)


def main(folder: Path) -> None:
    """Make the wheel, install it alone, then with each extra."""
    folder = folder.absolute()
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True
    )
    (wheel,) = folder.glob("kvpacket_rag-*.whl")
    base = folder / "alone"
    venv.create(base, with_pip=True)
    call(base, *PIP, str(wheel))
    call(base, "-c", ALONE)
    call(base, "-m", "kvpacket_rag", "--version")
    for extra, works in EXTRAS.items():
        own = folder / extra
        venv.create(own)  # with the pip of the first
        (packages(own) / "alone.pth").write_text(f"{packages(base)}\n", encoding="utf-8")
        call(own, *PIP, f"{wheel}[{extra}]")
        call(own, "-c", works)
        sys.stdout.write(f"with {extra}: works\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
