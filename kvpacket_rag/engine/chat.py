"""Text to token ids: chat templates that are split around the context, and user text that stays text.

Nothing in a document, question or message can become a special token, because user text never passes through the
template. The template is rendered once with marks in the places of user text, and split at the marks. The pieces are
tokenised separately: template pieces with special tokens, user text without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from kvpacket_rag.errors import InputError, ModelLoadError, check_kind, check_question

__all__ = ["SEPARATOR", "Prompt", "PromptStyle", "TextCodec"]

SEPARATOR = "\n\n"
"""Text that follows every chunk inside its packet, so that documents do not run into each other."""

ROLES = ("system", "user", "assistant")

_MARK = "\ue0f0{}\ue0f1"
_MARKED = re.compile("\ue0f0([0-9]+)\ue0f1")

PLAIN_TEMPLATE = """{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}

{% elif message['role'] == 'user' %}{{ message['content'] }}
{% else %}Answer: {{ message['content'] }}

{% endif %}{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"""
"""Template for models without a chat template: the system text, then turns as plain lines, then "Answer:"."""
PLAIN_STOP = ("\n\n", "\nQuestion:")
"""Such models do not end a turn and continue with text of their own. Their answer ends at the first of these texts."""


@dataclass(frozen=True)
class PromptStyle:
    """The words around documents and question. To change them, create another `PromptStyle`."""

    system: str = "You answer questions from the documents you are given."
    opening: str = ""
    """Text that opens the user turn, before the first document."""
    closing: str = "Using the text above, answer the question.\nQuestion: "
    """Text between the last document and the question."""


@dataclass(frozen=True)
class Prompt:
    """Token ids before and after the context."""

    prefix: tuple[int, ...]
    """Everything before the first packet."""
    tail: tuple[int, ...]
    """Everything after the last packet: closing words, question, and the opening of the answer."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, besides the model's own end tokens."""


def _piecewise(backend: Tokenizer) -> Tokenizer:
    """Copy a tokenizer for pieces of text that are joined after tokenisation.

    The copy adds no opening token and no leading space (as sentencepiece does at the start of a text). It neither
    truncates nor pads.
    """

    def without_front_space(part: Any) -> Any:
        if isinstance(part, list):
            return [without_front_space(item) for item in part if not _is_prepend(item)]
        if not isinstance(part, dict):
            return part
        values = {key: without_front_space(value) for key, value in part.items()}
        return {**values, "prepend_scheme": "never"} if values.get("type") == "Metaspace" else values

    parts = json.loads(backend.to_str())
    for name in ("normalizer", "pre_tokenizer"):
        parts[name] = None if _is_prepend(parts[name]) else without_front_space(parts[name])
    parts["post_processor"] = parts["truncation"] = parts["padding"] = None
    return Tokenizer.from_str(json.dumps(parts))


def _is_prepend(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "Prepend"


class TextCodec:
    """Converts text to token ids and back with one tokenizer. Several threads may use one codec."""

    def __init__(self, tokenizer: Any) -> None:
        """Create a codec for a tokenizer of the tokenizers library. Raises `ModelLoadError` for other tokenizers."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelLoadError(
                f"{type(tokenizer).__name__} has no tokenizer.json to work with; packets need a tokenizer of the "
                'tokenizers library (a "fast" one). Convert it, or choose another model.'
            )
        self.tokenizer = tokenizer
        # Both are copies, so that users of the shared tokenizer do not share settings (special tokens, truncation).
        self.counter = _piecewise(backend)
        self.counter.encode_special_tokens = True
        self._template = _piecewise(backend)
        opening = backend.encode("a", add_special_tokens=True).ids[0]
        self._opens_sequences = opening == tokenizer.bos_token_id
        self.special_ids = frozenset(tokenizer.all_special_ids)
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
        contents = sorted(map(re.escape, added), key=len, reverse=True)
        self._markers = re.compile("|".join(contents)) if contents else None

    @cached_property
    def separator(self) -> tuple[int, ...]:
        """Token ids of `SEPARATOR`."""
        return self.plain(SEPARATOR)

    def plain(self, text: str) -> tuple[int, ...]:
        """Tokenise user text. Special tokens and chat markers written in it become ordinary characters.

        Each marker is split after its first character, so that no tokenizer setting can join them again.
        """
        pieces = []
        start = 0
        while self._markers is not None and (match := self._markers.search(text, start)) is not None:
            cut = match.start() + 1
            pieces.append(text[start:cut])
            start = cut
        pieces.append(text[start:])
        return tuple(i for piece in pieces if piece for i in self.counter.encode(piece, add_special_tokens=False).ids)

    def template(self, text: str) -> tuple[int, ...]:
        """Tokenise a piece of the chat template; special tokens are recognised, but none is added."""
        return tuple(self._template.encode(text, add_special_tokens=False).ids) if text else ()

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids."""
        return str(self._template.decode(list(ids), skip_special_tokens=skip_special))

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer has a chat template of its own."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def _render(self, messages: list[dict[str, str]]) -> str:
        template = None if self.has_template else PLAIN_TEMPLATE
        return str(
            self.tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        )

    def _render_any(self, messages: list[dict[str, str]]) -> str:
        """Render messages. If the template has no system role, the system text opens the first user turn."""
        try:
            rendered = self._render(messages)
        except Exception:  # templates reject messages with several kinds of jinja2 errors
            rendered = ""
        wanted = [m["content"] for m in messages]
        if all(content in rendered for content in wanted):
            return rendered
        if [message["role"] for message in messages[:2]] == ["system", "user"]:
            first = {"role": "user", "content": messages[0]["content"] + "\n\n" + messages[1]["content"]}
            return self._render_any([first, *messages[2:]])
        raise InputError(
            "The model's chat template cannot hold these messages. Give alternating user and assistant turns, starting with a user turn."
        )

    def _runs(self, rendered: str, contents: Sequence[Sequence[str | None]]) -> list[tuple[int, ...]]:
        """Return the token ids of a rendered template, split at every placeholder."""
        runs: list[list[int]] = [[]]
        for index, piece in enumerate(_MARKED.split(rendered)):
            if index % 2 == 0:
                runs[-1] += self.template(piece)
                continue
            for part in contents[int(piece)]:
                if part is None:
                    runs.append([])
                else:
                    runs[-1] += self.plain(part)
        return [tuple(run) for run in runs]

    def _one_bos(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """Make the prefix start with the sequence-opening token exactly once, if this tokenizer opens sequences."""
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return prefix
        while len(prefix) > 1 and prefix[0] == prefix[1] == bos:
            prefix = prefix[1:]
        if self._opens_sequences and prefix[:1] != (bos,):
            prefix = (bos, *prefix)
        return prefix

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer, besides the model's own end tokens."""
        return () if self.has_template else PLAIN_STOP

    def conversation(self, turns: Sequence[tuple[str, Sequence[str | None]]]) -> list[tuple[int, ...]]:
        """Return the token ids of a conversation, up to the opening of the next answer, split at its placeholders.

        turns: (role, content) pairs, oldest first. A role is system, user or assistant. A content is a sequence of
        texts, with None for each placeholder. Consecutive turns of the same role are joined. Returns runs of ids, one
        more than there are placeholders. Runs may be empty. Raises `InputError` for another role, or for turns that the
        chat template cannot hold.
        """
        contents: list[Sequence[str | None]] = []
        messages: list[dict[str, str]] = []
        for role, content in turns:
            if role not in ROLES:
                raise InputError(f"A turn's role must be one of {', '.join(ROLES)}; got {role!r}.")
            mark = _MARK.format(len(contents))
            contents.append(content)
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += "\n\n" + mark
            else:
                messages.append({"role": role, "content": mark})
        first, *others = self._runs(self._render_any(messages), contents)
        return [self._one_bos(first), *others]

    def prompt(
        self, question: str, *, style: PromptStyle | None = None, history: Sequence[Mapping[str, str]] = ()
    ) -> Prompt:
        """Build the prompt of a question: the rendered chat template, split at the place of the context.

        history: earlier turns, `{"role": "user" | "assistant", "content": ...}`, oldest first. They stand before
        the documents, which belong to the last user turn. Consecutive turns of the same role are joined.
        Raises `InputError` for an empty question or an unknown role.
        """
        style = style or PromptStyle()
        check_question(question)
        turns: list[tuple[str, Sequence[str | None]]] = []
        if style.system.strip():
            turns.append(("system", [style.system.strip()]))
        for turn in history:
            check_kind(turn, Mapping, "A history turn", 'Give {"role": "user", "content": "..."}.')
            role, content = turn.get("role"), turn.get("content")
            if role not in ROLES or not isinstance(content, str):
                raise InputError(
                    f"A history turn needs the role system, user or assistant and a text as its content; got the role {role!r} and a content of type {type(content).__name__}."
                )
            turns.append((role, [content]))
        turns.append(("user", [style.opening, None, style.closing + question]))
        prefix, tail = self.conversation(turns)
        return Prompt(prefix, tail, self.stop)
