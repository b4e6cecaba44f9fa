"""Load a model and its tokenizer by catalogue name, Hugging Face id, folder or GGUF file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kvpacket_rag.display.progress import quiet_loading
from kvpacket_rag.engine.catalogue import CATALOGUE, fetch
from kvpacket_rag.engine.transformers.layout import refuse_by_config
from kvpacket_rag.errors import KVPacketError, ModelLoadError

__all__ = ["Loaded", "chosen_device", "load", "native_dtype"]


@dataclass(frozen=True)
class Loaded:
    """A model in memory with its tokenizer and its name."""

    model: Any
    tokenizer: Any
    name: str
    source: str
    """Name, id or absolute path from which the model can be loaded again."""


def native_dtype(device: torch.device) -> torch.dtype:
    """Return the fastest number format that a device computes natively.

    This is bfloat16 if the device supports it, because an emulated bfloat16 is slower than float32. Otherwise it is
    float16 on CUDA devices and float32 on other devices.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        return (
            torch.bfloat16
            if any(capabilities.get(c) for c in ("avx512_bf16", "amx_bf16", "arm_bf16"))
            else torch.float32
        )
    return torch.float32


def load(name: str, *, device: str | torch.device | None, dtype: torch.dtype | str | None) -> Loaded:
    """Load a causal language model. See `PacketModel.from_pretrained`."""
    target = chosen_device(device)
    precision = _dtype(dtype) or native_dtype(target)
    if name.lower() in CATALOGUE:
        entry = CATALOGUE[name.lower()]
        if entry.kind != "generator":
            names = ", ".join(e.name for e in CATALOGUE.values() if e.kind == "generator")
            raise ModelLoadError(
                f"{entry.name} is an {entry.kind}, not a generator. Generators known by name: {names}."
            )
        return _load_folder(str(fetch(entry.name, convert_gguf)), entry.name, entry.name, target, precision)
    path = Path(name)
    shown, again = (path.name, str(path.resolve())) if path.exists() else (name, name)
    if path.suffix == ".gguf":
        with tempfile.TemporaryDirectory() as scratch:
            convert_gguf(path, Path(scratch) / "model")
            return _load_folder(str(Path(scratch) / "model"), shown, again, target, precision)
    return _load_folder(name, shown, again, target, precision)


def chosen_device(device: str | torch.device | None) -> torch.device:
    """Return a device by name, by default CUDA if it is available. Raises `ModelLoadError` if it cannot be used."""
    try:
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:
        raise ModelLoadError(f"The device {str(device)!r} cannot be used here. Give cpu, cuda or cuda:N.") from error
    return target


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise ModelLoadError(f"{dtype!r} is not a number format. Give float32, bfloat16 or float16.")
        return found
    return dtype


def _load_folder(folder: str, name: str, source: str, device: torch.device, dtype: torch.dtype) -> Loaded:
    try:
        with quiet_loading():
            config = AutoConfig.from_pretrained(folder)
            refuse_by_config(config)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except KVPacketError:
        raise
    except Exception as error:  # damaged files make the libraries raise many kinds of errors
        raise ModelLoadError(
            f"No model could be loaded from {source!r}: {_first_line(error)} Give a name from `kvpacket models`, a Hugging Face id, "
            "a folder with config.json, weights and tokenizer, or a GGUF file."
        ) from error
    if missing := sorted(loading["missing_keys"]):
        raise ModelLoadError(
            f"{source!r} lacks {len(missing)} weights ({', '.join(missing[:3])}, …), which would be random. Get the complete checkpoint."
        )
    return Loaded(model.to(device), tokenizer, name, source)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if lines[0].endswith(".") else lines[0] + "."


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Convert a GGUF file into a model folder with bfloat16 weights.

    The weights are dequantised once. A model that was loaded from GGUF cannot be saved directly, so its weights are
    copied into a new model with the same configuration.
    """
    if not gguf.exists():
        raise ModelLoadError(
            f"There is no file {gguf}. Give the path of a GGUF file, a model folder or a Hugging Face id."
        )
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    except ImportError as error:
        raise ModelLoadError(
            f"Reading {gguf.name} needs the packages gguf and accelerate: pip install gguf accelerate."
        ) from error
    except Exception as error:  # for the same reason as above
        raise ModelLoadError(f"{gguf} cannot be read as a GGUF model: {_first_line(error)}") from error
    values = {
        k: v
        for k, v in loaded.config.to_dict().items()
        if k not in ("quantization_config", "_name_or_path", "model_type")
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(loaded.config.model_type, **values))
    missing = model.load_state_dict({k: v.float() for k, v in loaded.state_dict().items()}, strict=False).missing_keys
    model.tie_weights()
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if set(missing) - tied:
        raise ModelLoadError(f"{gguf} lacks weights: {', '.join(sorted(set(missing) - tied)[:5])}.")
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
