"""Calls of a Hugging Face model: argument names by release, one caller at a time, gradients only on request.

This module holds all knowledge about the signatures and outputs of models from other libraries.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from kvpacket_rag.engine.fair_lock import FairLock
from kvpacket_rag.engine.transformers.grouped_attention import use_grouped_attention
from kvpacket_rag.errors import KVPacketError, UnsupportedModelError

__all__ = ["Forward"]


class Forward:
    """Calls one frozen model. Threads take turns in the order of their requests."""

    def __init__(self, hf_model: Any) -> None:
        """Freeze the model and inspect the arguments of its forward pass.

        Raises `UnsupportedModelError` if the forward pass does not accept explicit positions.
        """
        self.hf = hf_model.eval().requires_grad_(False)
        use_grouped_attention(hf_model)
        self._decoder = hf_model.get_decoder() or hf_model
        self._turn = FairLock()
        parameters = inspect.signature(hf_model.forward).parameters
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        if "position_ids" not in parameters:
            raise UnsupportedModelError(
                f"{hf_model.config.model_type} does not accept explicit positions, so packets cannot be placed.",
                reason="recurrent_layers" if "cache_params" in parameters else "cache_layout",
            )

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device(next(self.hf.parameters()).device)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        dtype: torch.dtype = next(self.hf.parameters()).dtype
        return dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [..., hidden] of token ids [...]."""
        embeddings: Tensor = self.hf.get_input_embeddings()(ids.to(self.device))
        return embeddings

    def keeping(self, keep: int, count: int) -> dict[str, Any]:
        """Return the argument that makes a pass over `count` tokens compute only the logits of the last `keep` tokens.

        It lists the last tokens as indices. With a count, the model would slice the hidden states. The slice is not
        contiguous, and torch would copy the whole output matrix to multiply it, which takes a quarter of the time of a
        short question on a CPU.
        """
        wanted = keep and self._keeps_logits
        return {"logits_to_keep": torch.arange(count - keep, count, device=self.device)} if wanted else {}

    def __call__(
        self, cache: Any, positions: Tensor, *, keep: int = 1, differentiable: bool = False, **inputs: Any
    ) -> Any:
        """Run the model on `input_ids` or `inputs_embeds`.

        keep: number of last tokens whose logits are computed. With 0, the model's head does not run.
        differentiable: whether gradients reach inputs and cached states.
        """
        inputs[self.cache_argument] = cache
        inputs |= self.keeping(keep, positions.shape[-1])
        run = self.hf if keep else self._decoder
        with torch.set_grad_enabled(differentiable), self._turn:
            return run(position_ids=positions.to(self.device), use_cache=True, return_dict=True, **inputs)

    @contextmanager
    def attention(self, kind: str) -> Iterator[None]:
        """Use another attention of transformers inside a `with` block. Other threads wait until the block ends."""
        with self._turn:
            usual = self.hf.config._attn_implementation
            self.hf.set_attn_implementation(kind)
            try:
                yield
            finally:
                self.hf.set_attn_implementation(usual)

    def probe(self, ids: Tensor, positions: Tensor) -> Any:
        """Run a few tokens and return the model's own dynamic cache.

        Raises `UnsupportedModelError` if the model does not run with a dynamic cache.
        """
        try:
            output = self(DynamicCache(), positions, input_ids=ids.to(self.device))
        except KVPacketError:
            raise
        except Exception as error:  # any exception of the model's forward pass means the same here
            raise UnsupportedModelError(
                f"{self.hf.config.model_type} does not run with a plain key/value cache and explicit positions: {error}",
                reason="cache_layout",
            ) from error
        return getattr(output, "cache", None) or getattr(output, "past_key_values", None)

    def end_ids(self, tokenizer: Any) -> frozenset[int]:
        """Return the token ids that end an answer, from generation settings, configuration and tokenizer."""
        found: set[int] = set()
        for value in (
            getattr(self.hf.generation_config, "eos_token_id", None),
            getattr(self.hf.config, "eos_token_id", None),
            tokenizer.eos_token_id,
        ):
            found.update(value if isinstance(value, list) else [] if value is None else [value])
        return frozenset(found)
