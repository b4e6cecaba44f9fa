"""Choosing tokens is a pure function; stopping and streaming work on text, across token borders."""

from __future__ import annotations

import pytest
import torch

from kvpacket_rag.answering.generation import GenerationConfig, TextStream, choose, generate, generate_rows
from kvpacket_rag.engine.assembly import ask as run_question
from kvpacket_rag.engine.assembly import assemble, prefill
from kvpacket_rag.errors import InputError
from tests.engine.test_assembly import CHUNKS, PREFIX, TAIL

LOGITS = torch.tensor([0.1, 2.0, 1.9, -1.0, 0.5])


def sampled(config: GenerationConfig, n: int = 400) -> set[int]:
    generator = torch.Generator().manual_seed(1)
    return {choose(LOGITS, config, generator=generator) for _ in range(n)}


def test_temperature_zero_takes_the_most_likely():
    assert choose(LOGITS, GenerationConfig()) == 1


def test_top_k_and_top_p_limit_the_choice():
    assert sampled(GenerationConfig(temperature=1.0)) == {0, 1, 2, 3, 4}
    assert sampled(GenerationConfig(temperature=1.0, top_k=2)) == {1, 2}
    assert sampled(GenerationConfig(temperature=1.0, top_p=0.6)) == {1, 2}
    assert sampled(GenerationConfig(temperature=1.0, top_p=1e-6)) == {1}


def test_the_penalty_counts_real_tokens_of_the_prompt_packets_included(llama):
    packets = llama.encode([CHUNKS[0], CHUNKS[2]])
    context = assemble(llama, PREFIX, packets, room=40)
    logits = run_question(llama, context, TAIL)
    config = GenerationConfig(max_new_tokens=1, repetition_penalty=1e6)
    (piece, *_) = generate(llama, context, logits.abs() + 1, config)
    assert piece.token not in set(PREFIX) | set(CHUNKS[0]) | set(CHUNKS[2]) | set(TAIL)


def test_the_penalty_follows_transformers():
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    seen = torch.tensor([[1, 3, 3]])
    for logits in (LOGITS, LOGITS - 3, -LOGITS):
        theirs = RepetitionPenaltyLogitsProcessor(1.7)(seen, logits[None].clone())[0]
        config = GenerationConfig(repetition_penalty=1.7)
        before = logits.clone()
        assert choose(logits, config, seen=torch.tensor([1, 3])) == int(theirs.argmax())
        assert torch.equal(logits, before)  # the caller's logits are not changed


def test_a_seed_makes_sampling_repeatable(llama):
    def run(seed):
        context, logits = prefill(llama, PREFIX, [CHUNKS[0]], TAIL, room=20)
        config = GenerationConfig(max_new_tokens=20, temperature=2.0, seed=seed)
        return [piece.token for piece in generate(llama, context, logits, config)]

    assert run(5) == run(5)
    assert run(5) != run(6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"repetition_penalty": 0},
        {"stop": "END"},
        {"stop": ("",)},
    ],
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        GenerationConfig(**wrong)


def streamed(llama, text: str, stop: tuple[str, ...]) -> tuple[list[str], str]:
    stream = TextStream(llama, stop)
    pieces = []
    for token in llama.text.plain(text):
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    return pieces, "".join(pieces) + stream.finish()


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one END two", ("END",), "one "),
        ("one EN two", ("END",), "one EN two"),
        ("one EN", ("END",), "one EN"),
        ("ab\n\nQ: x", ("\n\nQ:", "zz"), "ab"),
        ("aXbY", ("Y", "X"), "a"),
        ("plain", (), "plain"),
    ],
)
def test_stop_texts_are_found_across_tokens_and_cut(llama, text, stop, expected):
    pieces, whole = streamed(llama, text, stop)
    assert whole == expected
    assert "".join(pieces) in expected or whole.startswith("".join(pieces))


def test_half_characters_are_held_back():
    class Bytes:
        """A model whose tokens are bytes."""

        class text:  # noqa: N801
            @staticmethod
            def decode(ids):
                return bytes(ids).decode("utf-8", errors="replace")

    stream = TextStream(Bytes)
    data = "aé漢😀b".encode()
    pieces = [stream.push(byte) for byte in data]
    assert "".join(pieces) + stream.finish() == "aé漢😀b"
    assert all("\ufffd" not in piece for piece in pieces)
    cut = TextStream(Bytes)
    for byte in data[:5]:
        cut.push(byte)
    assert cut.finish() == ""  # what is left of a character is not shown


def test_closing_the_iterator_stops_the_work(llama):
    context, logits = prefill(llama, PREFIX, [CHUNKS[0]], TAIL, room=20)
    pieces = generate(llama, context, logits, GenerationConfig(max_new_tokens=20))
    next(pieces)
    filled = context.cache.length
    pieces.close()
    assert context.cache.length == filled
    assert list(pieces) == []


def test_rows_of_different_length_decode_together_as_they_do_alone(any_model):
    model, new = any_model, 10
    orders = [[0], [2, 1, 4], [3, 3]]
    packets = model.encode(CHUNKS)
    config = GenerationConfig(max_new_tokens=new, temperature=0.8, seed=3)
    lengths = [len(PREFIX) + sum(len(CHUNKS[i]) for i in order) + len(TAIL) for order in orders]
    cache = model.allocate(max(lengths) + new, rows=len(orders))
    contexts, logits = [], []
    for row, (order, length) in enumerate(zip(orders, lengths, strict=True)):
        start = max(lengths) - length
        cache.clear(0, start, row)
        context = assemble(
            model, PREFIX, [packets[i] for i in order], room=len(TAIL) + new, cache=cache.view(row, start)
        )
        logits.append(run_question(model, context, TAIL))
        contexts.append(context)
    together = [[] for _ in orders]
    for step in generate_rows(model, contexts, torch.cat(logits), config, cache=cache.filled(max(lengths))):
        for tokens, pieces in zip(together, step, strict=True):
            tokens += [piece.token for piece in pieces if piece.token is not None]
    for row, order in enumerate(orders):
        context = assemble(model, PREFIX, [packets[i] for i in order], room=len(TAIL) + new)
        first = run_question(model, context, TAIL)
        alone = GenerationConfig(max_new_tokens=new, temperature=0.8, seed=3 + row)
        assert together[row] == [p.token for p in generate(model, context, first, alone) if p.token is not None]
