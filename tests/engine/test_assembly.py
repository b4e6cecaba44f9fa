"""The main property: what packets give equals what the model itself computes (fp32, 1e-4), on every architecture."""

from __future__ import annotations

import itertools

import pytest
import torch

from kvpacket_rag.answering.generation import GenerationConfig, generate
from kvpacket_rag.engine.assembly import ask, assemble, prefill
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import Adapter
from tests.conftest import ARCHITECTURES, VOCABULARY, character_tokenizer, tiny_config, tiny_hf

TOLERANCE = 1e-4


def some_ids(n: int, seed: int) -> list[int]:
    return torch.randint(5, VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


PREFIX, TAIL, ANCHOR = some_ids(9, 1), some_ids(7, 2), some_ids(13, 3)
CHUNKS = [some_ids(n, 10 + n) for n in (17, 11, 23, 5, 14)]
ORDERS = {"one": [0], "two": [1, 0], "five": [3, 1, 4, 0, 2], "duplicates": [2, 2, 1, 2, 1]}


def block_mask_logits(model: PacketModel, order: list[int], anchor: list[int]) -> torch.Tensor:
    """Reference: one forward pass of the bare Hugging Face model under a block mask.

    Every chunk sees its own copy of the anchor (standing right before it) and itself; prefix and tail see prefix
    and chunks, never an anchor. Adapter parts are part of the chunk, the bridge part of the tail.
    """
    hf, adapter = model._hf, model.adapter

    def embed(ids: list[int]) -> torch.Tensor:
        tensor = torch.tensor(ids, dtype=torch.long)
        rows = hf.get_input_embeddings()(tensor.clamp_min(0))
        return (
            torch.stack([adapter.anchor[-1 - i] if i < 0 else row for i, row in zip(ids, rows, strict=True)])
            if ids
            else rows
        )

    pieces, positions, owners = [embed(PREFIX)], [torch.arange(len(PREFIX))], [torch.full((len(PREFIX),), -1)]
    start = len(PREFIX)
    for number, index in enumerate(order):
        body = torch.cat((adapter.header, embed(CHUNKS[index]), adapter.trailer))
        pieces += [embed(anchor), body]
        positions.append(torch.arange(start - len(anchor), start + len(body)))
        owners += [torch.full((len(anchor),), 1000 + number), torch.full((len(body),), number)]
        start += len(body)
    tail = torch.cat((adapter.bridge, embed(TAIL)))
    pieces.append(tail)
    positions.append(torch.arange(start, start + len(tail)))
    owners.append(torch.full((len(tail),), -2))
    embeds, position, owner = torch.cat(pieces), torch.cat(positions), torch.cat(owners)
    query, key = owner[:, None], owner[None, :]
    is_anchor = key >= 1000
    seen = (query == key) | ((query >= 0) & (query < 1000) & (key == query + 1000)) | ((query == -2) & ~is_anchor)
    allowed = seen & (torch.arange(len(owner))[:, None] >= torch.arange(len(owner))[None, :])
    config = hf.config
    near = (position[:, None] - position[None, :]) < (getattr(config, "sliding_window", None) or 10**9)

    def additive(mask: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]

    kinds = set(getattr(config, "layer_types", None) or ())
    if "sliding_attention" in kinds and len(kinds) > 1:
        mask = {"full_attention": additive(allowed), "sliding_attention": additive(allowed & near)}
    elif "full_attention" in kinds and config.model_type in ("smollm3", "qwen2", "qwen3"):
        mask = {"full_attention": additive(allowed)}
    else:
        mask = additive(allowed & near)
    with torch.no_grad():
        return hf(inputs_embeds=embeds[None], position_ids=position[None], attention_mask=mask, use_cache=False).logits[
            0, -1
        ]


@pytest.mark.parametrize("anchor", [[], ANCHOR], ids=["no-anchor", "anchor"])
@pytest.mark.parametrize("adapted", [False, True], ids=["bare", "adapter"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_context_of_packets_equals_one_pass_under_the_block_mask(any_model, order, adapted, anchor):
    model = any_model
    if adapted:
        generator = torch.Generator().manual_seed(5)
        scale = float(model._hf.get_input_embeddings()(torch.tensor([7])).std())
        sizes = {"header": 3, "trailer": 2, "bridge": 4, "anchor": 5}
        parts = {name: torch.randn(n, model.hidden_size, generator=generator) * scale for name, n in sizes.items()}
        model = with_adapter(model, Adapter.of(parts))
        anchor = [*anchor, *range(-1, -6, -1)] if anchor else anchor
    packets = model.encode(CHUNKS, anchor=anchor)
    context = assemble(model, PREFIX, [packets[i] for i in order], room=20)
    logits = ask(model, context, TAIL, bridge=model.adapter.bridge)[0]
    assert (logits - block_mask_logits(model, order, anchor)).abs().max() < TOLERANCE


def with_adapter(model: PacketModel, adapter: Adapter) -> PacketModel:
    return PacketModel(model._hf, model.text.tokenizer, name=model.name, adapter=adapter)


def test_one_packet_without_anchor_equals_a_plain_prefill(any_model):
    model = any_model
    packet = model.encode([PREFIX + CHUNKS[0]])[0]
    logits = ask(model, assemble(model, [], [packet], room=20), TAIL)
    _, expected = prefill(model, PREFIX, [CHUNKS[0]], TAIL, room=20)
    assert (logits - expected).abs().max() < TOLERANCE


def test_a_packet_behind_its_own_prefix_equals_a_plain_prefill(any_model):
    model = any_model
    packet = model.encode([CHUNKS[2]], anchor=PREFIX)[0]
    logits = ask(model, assemble(model, PREFIX, [packet], room=20), TAIL)
    _, expected = prefill(model, PREFIX, [CHUNKS[2]], TAIL, room=20)
    assert (logits - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("distance", [1, 37, 400])
def test_assembled_states_equal_states_computed_at_the_new_positions(any_model, distance):
    model = any_model
    chunk = CHUNKS[0]
    packet = model.encode([chunk])[0]
    moved = model.allocate(len(chunk))
    moved.place(packet.states, delta=distance)
    direct = model.allocate(len(chunk))
    model.forward(direct, chunk, positions=torch.arange(distance, distance + len(chunk))[None])
    for ours, theirs in zip(
        moved.read(0, 0, len(chunk), torch.float32), direct.read(0, 0, len(chunk), torch.float32), strict=True
    ):
        assert (ours.keys - theirs.keys).abs().max() < TOLERANCE
        assert (ours.values - theirs.values).abs().max() < TOLERANCE


def test_chunks_encoded_together_equal_chunks_encoded_alone(any_model):
    together = any_model.encode(CHUNKS, anchor=ANCHOR)
    for chunk, packet in zip(CHUNKS, together, strict=True):
        alone = any_model.encode([chunk], anchor=ANCHOR)[0]
        assert packet.token_ids == tuple(chunk)
        for a, b in zip(packet.states, alone.states, strict=True):
            assert (a.keys - b.keys).abs().max() < TOLERANCE
            assert (a.values - b.values).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_answers_of_full_prefill_equal_generate_of_transformers(name):
    hf = tiny_hf(tiny_config(name))
    model = PacketModel(hf, character_tokenizer(), name=name)
    context, logits = prefill(model, PREFIX, [CHUNKS[1]], TAIL, room=12)
    ours = [
        p.token for p in generate(model, context, logits, GenerationConfig(max_new_tokens=12)) if p.token is not None
    ]
    ids = torch.tensor([PREFIX + CHUNKS[1] + TAIL])
    theirs = hf.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=[3],
    )
    assert ours == [t for t in theirs[0, ids.shape[1] :].tolist() if t != 3]


def test_the_order_of_packets_changes_the_answer_but_not_the_packets(llama):
    packets = llama.encode(CHUNKS, anchor=ANCHOR)
    before = [(s.keys.clone(), s.values.clone()) for p in packets for s in p.states]
    results = [
        ask(llama, assemble(llama, PREFIX, [packets[i] for i in order], room=20), TAIL)
        for order in itertools.permutations(range(3))
    ]
    assert len({tuple(r[0].tolist()) for r in results}) == len(results)
    for (keys, values), states in zip(before, (s for p in packets for s in p.states), strict=True):
        assert torch.equal(keys, states.keys)
        assert torch.equal(values, states.values)


@pytest.mark.parametrize("adapted", [False, True], ids=["bare", "adapter"])
def test_text_between_packets_is_read_in_one_pass_as_if_piece_by_piece(any_model, adapted):
    model = any_model
    if adapted:
        sizes = {"header": 2, "trailer": 3, "bridge": 4, "anchor": 0}
        scale = float(model._hf.get_input_embeddings()(torch.tensor([7])).std())
        generator = torch.Generator().manual_seed(5)
        parts = {name: torch.randn(n, model.hidden_size, generator=generator) * scale for name, n in sizes.items()}
        model = with_adapter(model, Adapter.of(parts))
    first, second, third = model.encode(CHUNKS[:3], anchor=ANCHOR)
    between, after = tuple(some_ids(6, 4)), tuple(some_ids(3, 6))

    context = assemble(model, PREFIX, [first, between, second, after, third], room=20)
    logits = ask(model, context, TAIL, bridge=model.adapter.bridge)

    expected = model.allocate(len(context.token_ids))
    for piece in (PREFIX, first, between, second, after, third):
        if isinstance(piece, (tuple, list)):
            model.forward(expected, piece)
        else:
            expected.place(piece.states, delta=expected.length - piece.base_position)
    assert (logits - model.forward(expected, TAIL, bridge=model.adapter.bridge)).abs().max() < TOLERANCE
    for ours, theirs in zip(
        context.cache.read(0, 0, expected.length, torch.float32),
        expected.read(0, 0, expected.length, torch.float32),
        strict=True,
    ):
        assert (ours.keys - theirs.keys).abs().max() < TOLERANCE
        assert (ours.values - theirs.values).abs().max() < TOLERANCE
    assert context.cache.length == len(context.token_ids) == expected.length
    assert context.computed == len(between) + len(after) + len(model.adapter.bridge) + len(TAIL) + (
        0 if context.reused > sum(p.length for p in (first, second, third)) else len(PREFIX)
    )


def test_a_packet_cut_short_is_the_packet_of_the_shorter_chunk(any_model):
    packet = any_model.encode([CHUNKS[2]], anchor=ANCHOR)[0]
    shorter = any_model.encode([CHUNKS[2][:9]], anchor=ANCHOR)[0]
    cut = packet.cut(9)
    assert (cut.token_ids, cut.length, cut.base_position) == (shorter.token_ids, 9, shorter.base_position)
    for ours, theirs in zip(cut.states, shorter.states, strict=True):
        assert (ours.keys - theirs.keys).abs().max() < TOLERANCE
        assert (ours.values - theirs.values).abs().max() < TOLERANCE
    assert packet.cut(len(CHUNKS[2])) is packet
    for wrong in (0, len(CHUNKS[2]) + 1):
        with pytest.raises(InputError, match="can be cut to"):
            packet.cut(wrong)
