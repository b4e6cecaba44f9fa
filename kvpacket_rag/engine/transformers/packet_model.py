"""A frozen decoder that encodes packets and answers from them.

Only this module and the other modules in this folder know how Hugging Face models are called.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvpacket_rag.engine.chat import TextCodec
from kvpacket_rag.engine.protocol import ContextCache
from kvpacket_rag.engine.transformers import identity
from kvpacket_rag.engine.transformers.buffer_pool import BufferPool
from kvpacket_rag.engine.transformers.cache import GrowingCache, SlotCache
from kvpacket_rag.engine.transformers.forward import Forward
from kvpacket_rag.engine.transformers.identity import ModelSize, describe, model_size
from kvpacket_rag.engine.transformers.layout import position_limit, prove_layout, refuse_by_config
from kvpacket_rag.engine.transformers.loading import load
from kvpacket_rag.engine.transformers.prefix_cache import PrefixCache
from kvpacket_rag.engine.transformers.recompute import attention, recompute
from kvpacket_rag.packets.adapter import SHIPPED, Adapter, no_adapter, shipped_adapter
from kvpacket_rag.packets.fingerprint import Fingerprint, canonical, short_hash
from kvpacket_rag.packets.packet import GroupStates, Packet, StateLayout, check_chunks

__all__ = ["PacketModel"]

logger = logging.getLogger(__name__)

BATCH_TOKENS = 2048
"""Number of chunk tokens per forward pass: enough to use the processor fully, few enough to stay in its caches."""


class PacketModel:
    """A frozen causal language model with its tokenizer. It is proved at load that its cached states can be moved.

    The weights never change. Several threads may use one model: forward passes take turns.
    """

    def __init__(
        self, hf_model: Any, tokenizer: Any, *, name: str | None = None, source: str | None = None, adapter: Adapter | None = None
    ) -> None:  # fmt: skip
        """Wrap a loaded Hugging Face model and its tokenizer. Most callers use `from_pretrained`.

        Raises `UnsupportedModelError` with the reason if the model's states cannot be moved, and
        `AdapterError` if `adapter` belongs to another model.
        """
        refuse_by_config(hf_model.config)
        self._forward = Forward(hf_model)
        self._hf = hf_model
        self.name = name or str(getattr(hf_model.config, "_name_or_path", "") or hf_model.config.model_type)
        self.source = source or self.name
        """Name, id or absolute path with which `from_pretrained` loads the model again."""
        self.text = TextCodec(tokenizer)
        self._fixed, self._memory = PrefixCache(), BufferPool()
        self.hidden_size = int(self._forward.embed(torch.zeros(1, dtype=torch.long)).shape[-1])
        self.vocabulary_size = int(hf_model.config.get_text_config().vocab_size)
        self.max_positions = position_limit(hf_model.config)
        """Largest number of tokens in a context, question and answer included."""
        self.layout: StateLayout = prove_layout(hf_model, self._forward.probe, self.max_positions, self.vocabulary_size)
        self._differentiable, self.adapter = False, no_adapter(self.hidden_size)
        if adapter is not None:
            self._check(adapter)
            self.adapter = adapter

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | str | None = None,
        adapter: Adapter | str | Path | None = SHIPPED,
    ) -> PacketModel:  # fmt: skip
        """Load a model by catalogue name, Hugging Face id, folder or GGUF file.

        device: the device that runs the model. The default is CUDA if it is available, else the CPU.
        dtype: the number format. The default is bfloat16 if the processor computes it natively, else float32.
        adapter: an adapter, the path of an adapter file, or None. The default is the adapter that comes with the
        package for this model, if there is one.
        Raises `ModelLoadError` if no model can be loaded under that name, and `UnsupportedModelError` if the
        model's states cannot be moved.
        """
        loaded = load(str(name), device=device, dtype=dtype)
        model = cls(loaded.model, loaded.tokenizer, name=loaded.name, source=loaded.source)
        if adapter == SHIPPED:
            adapter = shipped_adapter(model.adapter_identity)
        elif isinstance(adapter, str | Path):
            adapter = Adapter.load(adapter)
        return model.with_adapter(adapter)

    def _check(self, adapter: Adapter) -> None:
        adapter.check(**self.adapter_identity)
        if adapter.card.weights not in ("", self.weights_hash):
            logger.warning(
                "The adapter was trained on other weights of %s. Measure its fidelity before you rely on it.", self.name
            )

    def with_adapter(self, adapter: Adapter | None, *, differentiable: bool = False) -> PacketModel:
        """Return the same model with another adapter or none. Both models share the weights.

        differentiable: whether gradients pass from logits to packets and the adapter's parts. Training needs this, but
        it is slower. Raises `AdapterError` if the adapter belongs to another model.
        """
        if adapter is not None:
            self._check(adapter)  # before copying, so that the copy has the cached hashes
        other = copy.copy(self)
        other._differentiable, other.adapter = differentiable, adapter or no_adapter(self.hidden_size)
        return other

    def __repr__(self) -> str:
        return describe(self.name, self.layout, self.dtype, self.device, self.max_positions, self.adapter)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._forward.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format that the model computes in."""
        return self._forward.dtype

    @cached_property
    def weights_hash(self) -> str:
        """Hash of a sample of every weight."""
        return identity.weights_hash(self._hf)

    @cached_property
    def tokenizer_hash(self) -> str:
        """Hash of the tokenizer."""
        return identity.tokenizer_hash(self.text.tokenizer)

    @cached_property
    def size(self) -> ModelSize:
        """Size of the model, from which the number of operations is computed."""
        return model_size(self._hf)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""
        return self._forward.end_ids(self.text.tokenizer)

    @property
    def adapter_identity(self) -> dict[str, Any]:
        """What an adapter of this model must have been trained for: architecture, hidden size, tokenizer and name."""
        return {
            "architecture": self._hf.config.model_type,
            "hidden_size": self.hidden_size,
            "tokenizer": self.tokenizer_hash,
            "model": self.name,
        }

    def fingerprint(self, *, namespace: str, anchor: Sequence[int], storage: str) -> Fingerprint:
        """Return the fingerprint of packets that are encoded after `anchor` and stored as `storage`."""
        trained = (self.adapter.anchor_hash,) if anchor and min(anchor) < 0 else ()
        model, rope, cache = identity.layout_hashes(self._hf.config, self.layout)
        return Fingerprint(
            model=model, rope=rope, cache=cache,
            namespace=namespace,
            weights=self.weights_hash,
            compute=str(self.dtype).removeprefix("torch."),
            tokenizer=self.tokenizer_hash,
            anchor=short_hash(canonical([*anchor, *trained])) if anchor else "none",
            adapter=self.adapter.packet_hash,
            storage=storage,
        )  # fmt: skip

    def embeddings(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, hidden] of token ids [n], in float32 on the CPU."""
        return self._forward.embed(ids).detach().float().cpu()

    def synchronize(self) -> None:
        """Wait until the device has finished its work, so that time measurements are correct."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def allocate(self, slots: int, rows: int = 1) -> SlotCache:
        """Allocate an empty cache for `rows` contexts of up to `slots` tokens."""
        if self._differentiable:
            return GrowingCache(self.layout, rows, self.dtype, self.device)
        return SlotCache.allocate(self.layout, rows, slots, self.dtype, self.device, self._memory)

    def forward(
        self, cache: ContextCache, ids: Sequence[int] | Tensor, *, bridge: Tensor | None = None,
        positions: Tensor | None = None, mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Run tokens after the filled slots of the cache and write their states into it.

        ids: n token ids, or a tensor [B, n]. bridge: embeddings [m, hidden] that run before the tokens.
        positions: position of each token, [B, n]. The default is the number of its slot.
        mask: a tensor [B, filled + n] that is 0 at slots to ignore.
        Returns float32 logits [B, vocabulary] of the last token.
        """
        return self.logits(cache, ids, keep=1, bridge=bridge, positions=positions, mask=mask)[:, -1]

    def logits(
        self, cache: ContextCache, ids: Sequence[int] | Tensor, *, keep: int, bridge: Tensor | None = None,
        positions: Tensor | None = None, mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Run tokens as `forward` does. Returns float32 logits [B, keep, vocabulary] of the last `keep` tokens."""
        tensor = torch.as_tensor(ids, dtype=torch.long, device=self.device)
        tensor = tensor if tensor.ndim == 2 else tensor[None]
        inputs: dict[str, Any] = {"input_ids": tensor}
        count = tensor.shape[1]
        if bridge is not None and len(bridge):
            soft = bridge.to(device=self.device, dtype=self.dtype).expand(tensor.shape[0], -1, -1)
            inputs = {"inputs_embeds": torch.cat((soft, self._forward.embed(tensor)), dim=1)}
            count += soft.shape[1]
        elif bool((tensor < 0).any()):
            inputs = {"inputs_embeds": self.adapter.embed_anchor(tensor, self._forward.embed(tensor.clamp_min(0)))}
        if mask is not None:
            inputs["attention_mask"] = mask
        if positions is None:
            positions = torch.arange(cache.length, cache.length + count)[None]
        output = self._forward(cache, positions, keep=keep, differentiable=self._differentiable, **inputs)
        logits: Tensor = output.logits[:, -keep:].float()
        return logits

    def recompute(
        self, cache: ContextCache, slots: Tensor, ids: Tensor, *, soft: Tensor | None = None, positions: Tensor | None = None,
        layers: int | None = None, keep: int = 0,
    ) -> Tensor:  # fmt: skip
        """Run tokens at chosen slots of a context and write their states there. See `recompute.recompute`."""
        return recompute(self._forward, cache, slots, ids, soft=soft, positions=positions, layers=layers, keep=keep)

    def attention(self, cache: ContextCache, ids: Tensor) -> Tensor:
        """Return attention weights of tokens `ids` [n] after a context, float32 [n, T]. See `recompute.attention`."""
        return attention(self._forward, cache, ids)

    def prefix_states(self, ids: Sequence[int]) -> tuple[GroupStates, ...]:
        """Return the states of an anchor or prefix, which opens many contexts. They are computed once and cached."""

        def compute() -> tuple[GroupStates, ...]:
            cache = self.allocate(len(ids))
            self.forward(cache, ids)
            return cache.read(0, 0, len(ids), self.dtype)

        if min(ids) >= 0:
            return self._fixed.get(tuple(ids), compute)
        return compute() if self._differentiable else self._fixed.get((self.adapter.anchor_hash, *ids), compute)

    def has_prefix_states(self, ids: Sequence[int]) -> bool:
        """Return whether the `prefix_states` of these ids are cached."""
        return tuple(ids) in self._fixed

    def encode(
        self, chunks: Sequence[Sequence[int]], *, anchor: Sequence[int] = (), storage: torch.dtype | None = None
    ) -> list[Packet]:
        """Encode chunks, given as token ids, into packets. See `encode_each`."""
        packets: dict[int, Packet] = dict(self.encode_each(chunks, anchor=anchor, storage=storage))
        return [packets[index] for index in range(len(chunks))]

    def encode_each(
        self, chunks: Sequence[Sequence[int]], *, anchor: Sequence[int] = (), storage: torch.dtype | None = None
    ) -> Iterator[tuple[int, Packet]]:
        """Encode chunks in batches, and yield (index, packet) for each chunk when its batch ends.

        anchor: token ids before every chunk. Their states are not part of the packet.
        storage: number format of the packets. The default is the one that the model computes in.
        Raises `InputError` for an empty chunk, or for a chunk that does not fit after the anchor.
        """
        extra = len(self.adapter.header) + len(self.adapter.trailer)
        check_chunks([len(chunk) for chunk in chunks], len(anchor), extra, self.max_positions)
        order = sorted(range(len(chunks)), key=lambda i: len(chunks[i]), reverse=True)
        while order:
            rows = max(1, BATCH_TOKENS // (len(chunks[order[0]]) + extra))
            batch, order = order[:rows], order[rows:]
            yield from zip(
                batch, self._encode_batch([chunks[i] for i in batch], tuple(anchor), storage or self.dtype), strict=True
            )

    def _encode_batch(
        self, chunks: list[Sequence[int]], anchor: tuple[int, ...], storage: torch.dtype
    ) -> Iterator[Packet]:
        header, trailer, start = len(self.adapter.header), len(self.adapter.trailer), len(anchor)
        longest = max(map(len, chunks)) + header + trailer
        cache = self.allocate(start + longest, rows=len(chunks))
        if anchor:
            cache.place(self.prefix_states(anchor), delta=0)
        # Shorter chunks are padded at the end, where none of their tokens can attend to the padding.
        ids = torch.tensor([[*chunk, *[0] * (longest - header - trailer - len(chunk))] for chunk in chunks])
        positions = torch.arange(start, start + longest)[None].expand(len(chunks), -1)
        inputs = {"input_ids": ids.to(self.device)}
        if header or trailer:
            lengths = [len(chunk) for chunk in chunks]
            inputs = {"inputs_embeds": self.adapter.surround(self._forward.embed(ids), lengths)}
        self._forward(cache, positions, keep=0, differentiable=self._differentiable, **inputs)
        for row, chunk in enumerate(chunks):
            states = cache.read(row, start, start + header + len(chunk) + trailer, storage)
            yield Packet(tuple(chunk), header, trailer, start, states)
