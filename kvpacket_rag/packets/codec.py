"""Encode packets as bytes and decode them. The format is safetensors, and its metadata describes the packet.

Layout: 8 bytes that hold the length of the header (little-endian), the header (JSON), then the tensors. Decoding copies
nothing: the tensors of a decoded packet share the memory of the buffer they were decoded from.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from kvpacket_rag.errors import DamagedError, KVPacketError, MismatchError
from kvpacket_rag.packets.fingerprint import FORMAT_VERSION, Fingerprint
from kvpacket_rag.packets.number_formats import CHANNELS, TOKENS, Quantised, Storage, dense
from kvpacket_rag.packets.packet import GroupStates, Packet

__all__ = ["decode", "encode"]

METADATA = "kvpacket"
KINDS = ("keys", "values")
DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8
}  # fmt: skip


def encode(packet: Packet, fingerprint: Fingerprint, storage: Storage) -> bytes:
    """Return the bytes of a packet made under `fingerprint`.

    Raises `InputError` if the packet's numbers are too large for the number format.
    """
    tensors = {"token_ids": torch.tensor(packet.token_ids, dtype=torch.int32)}
    for number, states in enumerate(packet.states):
        if storage.bits:
            for name, blocks in zip(KINDS, states.quantised(storage.bits), strict=True):
                parts = {"codes": blocks.codes, "steps": blocks.steps, "lows": blocks.lows}
                tensors |= {f"{name}.{number}.{part}": t for part, t in parts.items() if t is not None}
        else:
            tensors |= {f"keys.{number}": dense(states.keys), f"values.{number}": dense(states.values)}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    about = {
        "format": FORMAT_VERSION,
        "fingerprint": fingerprint.digest,
        "header": packet.header,
        "trailer": packet.trailer,
        "base_position": packet.base_position,
        "groups": len(packet.states),
    }
    if storage.bits:
        about["widths"] = [[group.keys.shape[-1], group.values.shape[-1]] for group in packet.states]
    return bytes(save(tensors, metadata={METADATA: json.dumps(about, sort_keys=True)}))


def decode(data: bytearray | memoryview, fingerprint: Fingerprint, name: str) -> Packet:
    """Return the packet that `data` holds. Its tensors share the memory of `data` and keep it alive.

    name: what error messages call the packet. Raises `MismatchError` if the packet was made under another fingerprint
    or format, and `DamagedError` if the bytes are not a packet.
    """
    try:
        (size,) = struct.unpack_from("<Q", data)
        header: dict[str, Any] = json.loads(bytes(data[8 : 8 + size]))
        about = json.loads(header.pop("__metadata__")[METADATA])
        if about["format"] != FORMAT_VERSION:
            raise MismatchError(
                f"Packet {name} has format {about['format']}, but this release reads format {FORMAT_VERSION}. Re-add its document.",
                field="format",
                expected=FORMAT_VERSION,
                found=about["format"],
            )
        if "shapes" in about:
            raise MismatchError(
                f"Packet {name} is quantised in an early format that no release reads. Re-add its document, or run `kvpacket verify --repair`.",
                field="format", expected=FORMAT_VERSION, found="early",
            )  # fmt: skip
        if about["fingerprint"] != fingerprint.digest:
            raise MismatchError(
                f"Packet {name} was made under fingerprint {about['fingerprint'][:12]}, expected {fingerprint.digest[:12]}.",
                field="fingerprint",
                expected=fingerprint.digest,
                found=about["fingerprint"],
            )
        tensors = {key: _tensor(data, 8 + size, entry) for key, entry in header.items()}
        return Packet(
            token_ids=tuple(tensors["token_ids"].tolist()),
            header=int(about["header"]),
            trailer=int(about["trailer"]),
            base_position=int(about["base_position"]),
            states=tuple(_states(tensors, about, i) for i in range(about["groups"])),
        )
    except (MismatchError, DamagedError):
        raise
    except (
        struct.error,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RuntimeError,
        KVPacketError,
    ) as error:
        raise DamagedError(f"Packet {name} cannot be decoded: {error}. Run `kvpacket verify --repair`.") from error


def _states(tensors: dict[str, Tensor], about: dict[str, Any], number: int) -> GroupStates:
    """Return the states of a layer group in the number format in which they were stored."""
    if "widths" not in about:
        return GroupStates(tensors[f"keys.{number}"], tensors[f"values.{number}"])
    keys, values = (
        Quantised(
            tensors[f"{name}.{number}.codes"],
            tensors[f"{name}.{number}.steps"],
            tensors.get(f"{name}.{number}.lows"),
            int(width),
            dim,
        )
        for name, width, dim in zip(KINDS, about["widths"][number], (TOKENS, CHANNELS), strict=True)
    )
    return GroupStates(keys, values)


def _tensor(data: bytearray | memoryview, base: int, entry: dict[str, Any]) -> Tensor:
    start, stop = entry["data_offsets"]
    if not 0 <= start <= stop <= len(data) - base:
        raise DamagedError(
            f"The header places a tensor at bytes {start} to {stop}, but the data has {len(data) - base} bytes."
        )
    dtype = DTYPES[entry["dtype"]]
    flat = torch.frombuffer(data, dtype=dtype, offset=base + start, count=(stop - start) // dtype.itemsize)
    return flat.reshape(entry["shape"])
