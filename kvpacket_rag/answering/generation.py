"""Generation of text from a context: choosing tokens, stopping and streaming, for one row or several.

This module works on token ids and contexts only. It does not depend on documents or stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvpacket_rag.engine.assembly import SOFT_TOKEN, Context
from kvpacket_rag.engine.protocol import ContextCache, Engine
from kvpacket_rag.errors import InputError, check_kind

__all__ = ["GenerationConfig", "Piece", "TextStream", "choose", "configured", "generate", "generate_rows"]


KINDS: dict[str, tuple[type, ...]] = {
    "max_new_tokens": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "repetition_penalty": (int, float),
    "stop": (str, list, tuple),
    "seed": (int, type(None)),
}


@dataclass(frozen=True)
class GenerationConfig:
    """Settings that say how tokens are chosen and when generation stops."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    """0 is greedy. Otherwise, logits are divided by the temperature."""
    top_p: float = 1.0
    """Sample from the most likely tokens that together reach this probability."""
    top_k: int = 0
    """Sample from this many of the most likely tokens. 0 means all tokens."""
    repetition_penalty: float = 1.0
    """Penalty for tokens that are already in the prompt (packets included) or in the answer.

    Their logits are divided by it if positive, and multiplied by it if negative.
    """
    stop: tuple[str, ...] = ()
    """Texts that end the answer. They are cut off."""
    seed: int | None = None
    """Makes sampling repeatable."""

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            check_kind(getattr(self, name), kind, name)
        checks = {
            "max_new_tokens must be at least 1": self.max_new_tokens >= 1,
            "temperature must be 0 or more": self.temperature >= 0,
            "top_p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "top_k must be 0 or more": self.top_k >= 0,
            "repetition_penalty must be above 0": self.repetition_penalty > 0,
            "stop must be a tuple of texts that are not empty": not isinstance(self.stop, str) and all(self.stop),
        }
        for rule, holds in checks.items():
            if not holds:
                name = rule.split()[0]
                raise InputError(f"{rule}; got {getattr(self, name)!r}.")

    def generator(self, device: torch.device, row: int = 0) -> torch.Generator | None:
        """Return the random number generator of one row of a batch, or None for greedy decoding."""
        if self.temperature == 0:
            return None
        generator = torch.Generator(device=device)
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed + row)
        return generator


SETTINGS = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")


def configured(defaults: GenerationConfig, settings: Mapping[str, Any], who: str) -> GenerationConfig:
    """Return `defaults` with the settings of one call, under the names that frameworks use.

    settings: those of `GenerationConfig`, with `max_tokens` instead of `max_new_tokens`. Texts in `stop` are added to
    those of `defaults`. A setting of None is ignored. who: name of the component, for the error message.
    Raises `InputError` for an unknown setting or a value out of range.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if unknown := set(given) - {*SETTINGS, "max_tokens", "stop"}:
        raise InputError(
            f"{who} takes no {', '.join(sorted(unknown))}; it takes {', '.join(SETTINGS)}, max_tokens, method and stop."
        )
    stop = given.pop("stop", ())
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    most = given.pop("max_tokens", defaults.max_new_tokens)
    return replace(defaults, **given, max_new_tokens=most, stop=(*defaults.stop, *stops))


def choose(
    logits: Tensor, config: GenerationConfig, *, seen: Tensor | None = None, generator: torch.Generator | None = None
) -> int:
    """Choose the next token from logits [vocabulary] and return its id.

    seen: ids of the tokens already in prompt and answer, for the repetition penalty.
    """
    if config.repetition_penalty != 1.0 and seen is not None and seen.numel():
        logits = logits.clone()
        scores = logits[seen]
        logits[seen] = torch.where(scores > 0, scores / config.repetition_penalty, scores * config.repetition_penalty)
    if config.temperature == 0:
        return int(logits.argmax())
    logits = logits / config.temperature
    if 0 < config.top_k < logits.numel():
        logits = logits.masked_fill(logits < logits.topk(config.top_k).values[-1], -torch.inf)
    if config.top_p < 1:
        ordered, indices = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.scatter(0, indices, ordered.masked_fill(before >= config.top_p, -torch.inf))
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


@dataclass(frozen=True)
class Piece:
    """A piece of the answer. `token` is None for text that was held back and released at the end."""

    text: str
    token: int | None


class TextStream:
    """Turns token ids into text as they arrive. It holds back incomplete characters and beginnings of stop texts."""

    def __init__(self, model: Engine, stop: Sequence[str] = ()) -> None:
        self._model, self._stop = model, tuple(stop)
        self._ids: list[int] = []
        # Only the tokens from `_start` on are decoded again. The text of those before `_read` is already in `_text`.
        self._start = self._read = 0
        self._text = ""
        self._given = 0
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token and return the text that is now final."""
        self._ids.append(token)
        self._decode(final=False)
        return self._release(final=False)

    def finish(self) -> str:
        """Return the text that was held back."""
        if self.stopped:
            return ""
        self._decode(final=True)
        # What is left of a character whose last bytes never came would be shown as a replacement character.
        self._text = self._text[: self._given] + self._text[self._given :].rstrip("\ufffd")
        return self._release(final=True)

    def _decode(self, *, final: bool) -> None:
        decode = self._model.text.decode
        text = decode(self._ids[self._start :])
        if text.endswith("\ufffd") and not final:  # the remaining bytes of a character have not arrived yet
            return
        self._text += text[len(decode(self._ids[self._start : self._read])) :]
        self._start, self._read = self._read, len(self._ids)

    def _release(self, *, final: bool) -> str:
        end = len(self._text)
        found = [at for at in (self._text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            end = min(found)
        elif not final:
            end -= self._held()
        new = self._text[self._given : end]
        self._given = max(self._given, end)
        return new

    def _held(self) -> int:
        """Return the length of the longest suffix of the text that may be the beginning of a stop text."""
        return max((n for stop in self._stop for n in range(1, len(stop)) if self._text.endswith(stop[:n])), default=0)


def _seen(context: Context, vocabulary: int, device: torch.device) -> Tensor:
    ids = {token for token in context.token_ids if token != SOFT_TOKEN and token < vocabulary}
    return torch.tensor(sorted(ids), dtype=torch.long, device=device)


def generate(model: Engine, context: Context, logits: Tensor, config: GenerationConfig) -> Iterator[Piece]:
    """Yield the answer piece by piece, given the logits [1, vocabulary] of the prompt's last token.

    The context is extended in place and afterwards contains the answer's states. Closing the iterator stops the
    generation.
    """
    for pieces in generate_rows(model, [context], logits, config):
        yield from pieces[0]


@dataclass(eq=False)
class _Row:
    context: Context
    text: TextStream
    random: torch.Generator | None
    seen: Tensor | None
    new: int = 0
    done: bool = False

    def take(self, logits: Tensor, config: GenerationConfig, end_ids: frozenset[int]) -> tuple[int, list[Piece]]:
        """Choose the next token of this row. Return it with the pieces of text that became final."""
        token = choose(logits, config, seen=self.seen, generator=self.random)
        if token in end_ids:
            self.done = True
            return token, self._rest()
        self.new += 1
        self.context.token_ids.append(token)
        if self.seen is not None:
            self.seen = torch.cat((self.seen, self.seen.new_tensor([token])))
        pieces = [Piece(self.text.push(token), token)]
        if self.text.stopped or self.new >= config.max_new_tokens:
            self.done = True
            pieces += self._rest()
        return token, pieces

    def _rest(self) -> list[Piece]:
        rest = self.text.finish()
        return [Piece(rest, None)] if rest else []


def generate_rows(
    model: Engine,
    contexts: Sequence[Context],
    logits: Tensor,
    config: GenerationConfig,
    *,
    cache: ContextCache | None = None,
) -> Iterator[list[list[Piece]]]:
    """Yield one list of pieces per row at each step. A finished row yields empty lists until all rows are finished.

    logits: [B, vocabulary], those of each prompt's last token.
    cache: needed for several contexts. Each context fills one row and ends at the last slot, so shorter ones
    start later.
    """
    device = model.device
    vocabulary = logits.shape[-1]
    penalised = config.repetition_penalty != 1.0
    rows = [
        _Row(
            context,
            TextStream(model, config.stop),
            config.generator(device, i),
            _seen(context, vocabulary, device) if penalised else None,
        )
        for i, context in enumerate(contexts)
    ]
    cache = cache or contexts[0].cache
    lengths = [len(context.token_ids) for context in contexts]
    longest = cache.length
    mask = torch.ones(len(rows), cache.slots, dtype=torch.long, device=device)
    for number, length in enumerate(lengths):
        mask[number, : longest - length] = 0
    step = 0
    while True:
        tokens, pieces = [], []
        for row, scores in zip(rows, logits, strict=True):
            token, new = (next(iter(model.end_ids), 0), []) if row.done else row.take(scores, config, model.end_ids)
            tokens.append(token)
            pieces.append(new)
        yield pieces
        if all(row.done for row in rows):
            return
        positions = torch.tensor([[length + step] for length in lengths])
        visible = mask[:, : cache.length + 1] if len(rows) > 1 else None
        logits = model.forward(cache, torch.tensor(tokens)[:, None], positions=positions, mask=visible)
        step += 1
