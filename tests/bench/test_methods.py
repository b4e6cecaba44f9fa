"""Methods to compare with: recomputing everything is a full prefill, on every architecture; costs are counted."""

from __future__ import annotations

import pytest
import torch

from kvpacket_rag.bench.methods.base import AbstractMethod
from kvpacket_rag.bench.methods.cacheblend import CacheBlend
from kvpacket_rag.bench.methods.epic import Epic
from kvpacket_rag.bench.methods.registry import ALL, make_methods
from kvpacket_rag.bench.methods.repair import AbstractRepair, spans
from kvpacket_rag.engine.assembly import assemble, prefill
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.errors import InputError
from kvpacket_rag.packets.adapter import Adapter, no_adapter
from kvpacket_rag.packets.anchor import PASSAGES
from kvpacket_rag.training.samples.prompts import Question
from tests.conftest import VOCABULARY

TOLERANCE = 1e-4
REPAIRS = ("epic", "cacheblend", "samkv", "a3", "random")


def some_ids(n: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(5, VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


QUESTION = Question(some_ids(9, 1), (some_ids(17, 2), some_ids(37, 3), some_ids(20, 4)), some_ids(7, 5))


def full_logits(model: PacketModel) -> torch.Tensor:
    return prefill(model, QUESTION.prefix, QUESTION.chunks, QUESTION.tail, room=8)[1]


def begun(method: AbstractMethod, model: PacketModel):
    method = method.for_corpus(PASSAGES)
    return method.begin(model, QUESTION, method.packets(model, QUESTION.chunks), 8)


@pytest.mark.parametrize("name", REPAIRS)
def test_recomputing_everything_equals_full_prefill(any_model: PacketModel, name: str):
    (method,) = make_methods([f"{name}-100"])
    assert torch.allclose(begun(method, any_model).logits, full_logits(any_model), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", REPAIRS)
def test_recomputing_a_share_gives_another_answer_than_none_and_than_all(llama: PacketModel, name: str):
    (method,) = make_methods([f"{name}-30"])
    logits = begun(method, llama).logits
    bare = begun(make_methods(["bare"])[0], llama).logits
    assert not torch.allclose(logits, bare, atol=1e-3)
    assert not torch.allclose(logits, full_logits(llama), atol=1e-3)


@pytest.mark.parametrize("name", ["full", "epic-100", "cacheblend-50", "samkv-30", "packet"])
def test_an_answer_can_go_on_behind_every_method(llama: PacketModel, name: str):
    (method,) = make_methods([name], packet=no_adapter(llama.hidden_size))
    start = begun(method, llama)
    at = start.context.cache.length + start.skipped
    logits = llama.forward(start.context.cache, [7], positions=torch.tensor([[at]]))
    assert at == QUESTION.length
    assert torch.isfinite(logits).all()


def test_recomputed_slots_see_each_other_and_the_rest(llama: PacketModel):
    """Recomputing the second half of a full prefill changes nothing; of foreign states, it does."""
    ids = torch.tensor([*QUESTION.prefix, *QUESTION.chunks[0]])
    cache = llama.allocate(len(ids))
    llama.forward(cache, ids.tolist())
    before = cache.read(0, 0, len(ids), torch.float32)
    llama.recompute(cache, torch.arange(10, len(ids)), ids[10:])
    for old, new in zip(before, cache.read(0, 0, len(ids), torch.float32), strict=True):
        assert torch.allclose(old.keys, new.keys, atol=TOLERANCE)
        assert torch.allclose(old.values, new.values, atol=TOLERANCE)


def test_only_filled_slots_can_be_recomputed(llama: PacketModel):
    cache = llama.allocate(5)
    llama.forward(cache, [7, 8, 9])
    with pytest.raises(InputError, match="has 3"):
        llama.recompute(cache, torch.tensor([3]), torch.tensor([7]))


def test_packets_are_not_changed_by_methods_that_recompute(llama: PacketModel):
    for name in REPAIRS:
        (method,) = make_methods([name])
        packets = method.packets(llama, QUESTION.chunks)
        before = [packet.states[0].keys.clone() for packet in packets]
        method.begin(llama, QUESTION, packets, 8)
        assert all(torch.equal(a, b.states[0].keys) for a, b in zip(before, packets, strict=True))


def test_packets_in_few_bits_are_a_method_of_their_own_near_the_same_in_full(llama: PacketModel):
    full, small, smaller = make_methods(["anchored", "anchored-int8", "anchored-int4"])
    assert len({full.identity, small.identity, smaller.identity}) == 3
    sizes = [sum(packet.nbytes for packet in m.packets(llama, QUESTION.chunks)) for m in (full, small, smaller)]
    assert sizes == sorted(sizes, reverse=True)
    logits = [begun(m, llama).logits for m in (full, small, smaller)]
    near, far = ((logits[0] - other).abs().max() for other in logits[1:])
    assert 0 < near < 0.1 < far < 1


def test_epic_takes_the_first_tokens_of_every_chunk(llama: PacketModel):
    method = Epic(0.2)
    context = assemble(llama, QUESTION.prefix, method.packets(llama, QUESTION.chunks), room=0)
    chosen = method.choose(llama, context, QUESTION).slots.tolist()
    for span, count in zip(spans(QUESTION), (3, 7, 4), strict=True):
        assert [slot for slot in chosen if slot in span] == list(span[:count])


def test_cacheblend_takes_the_tokens_whose_second_layer_changed_most(llama: PacketModel):
    """A chunk that stands in a full prefill already deviates nowhere, so nothing of it is chosen."""
    method = CacheBlend(0.3)
    context, _ = prefill(llama, QUESTION.prefix, QUESTION.chunks, (), room=0)
    foreign = llama.encode([QUESTION.chunks[2]])[0]
    slots = spans(QUESTION)[2]
    context.cache.filled(slots.start).place(foreign.states, delta=slots.start)
    chosen = method.choose(llama, context, QUESTION).slots
    inside = (chosen >= slots.start) & (chosen < slots.stop)
    assert int(inside.sum()) == len(slots)


def test_work_is_counted_and_recomputing_costs_more_than_placing(llama: PacketModel):
    work = {}
    for method in make_methods(ALL, packet=no_adapter(llama.hidden_size), paper=no_adapter(llama.hidden_size)):
        passes = begun(method, llama).passes
        work[method.name] = sum(p.keys * (p.layers or 3) for p in passes)
        assert all(p.keys <= p.tokens * QUESTION.length for p in passes)
    assert work["none"] < work["packet"] == work["bare"] < work["epic-10"] < work["epic-50"] < work["full"]
    assert work["random-30"] < work["cacheblend-30"]


def test_a_bridge_is_run_before_the_question(llama: PacketModel):
    adapter = Adapter.of({"bridge": torch.randn(3, llama.hidden_size)})
    with_bridge, without = (begun(make_methods(["packet"], packet=a)[0], llama) for a in (adapter, no_adapter(64)))
    assert with_bridge.context.cache.length == without.context.cache.length + 3
    assert with_bridge.passes[-1].tokens == without.passes[-1].tokens + 3
    assert not torch.allclose(with_bridge.logits, without.logits, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "message"),
    [("fulll", "no method 'fulll'"), ("epic-0", "above 0"), ("epic-200", "at most 1"), ("packet", "needs an adapter")],
)
def test_a_wrong_method_is_an_error_that_says_what_there_is(name: str, message: str):
    with pytest.raises(InputError, match=message):
        make_methods([name])


def test_fewer_passages_are_another_anchor(llama: PacketModel):
    one, all_of_them, anchored = (
        begun(m, llama).logits for m in make_methods(["passages-1", "passages-3", "anchored"])
    )
    assert torch.equal(all_of_them, anchored)
    assert not torch.allclose(one, anchored, atol=1e-4)


def test_an_anchor_of_the_corpus_is_one_of_its_passages(llama: PacketModel):
    (method,) = make_methods(["own-2"])
    fitted = method.for_corpus([*PASSAGES[:2], "another"])
    assert torch.equal(begun(fitted, llama).logits, begun(make_methods(["passages-2"])[0], llama).logits)
    other = method.for_corpus(["another", *PASSAGES[:2]])
    assert fitted.identity != other.identity
    assert fitted.stored != other.stored
    with pytest.raises(InputError, match=r"'own-2' needs 2 passages .* there are 1"):
        method.for_corpus(PASSAGES[:1])


@pytest.mark.parametrize("name", ["own-0", "own-5", "own-x"])
def test_anchors_of_the_corpus_have_one_to_four_passages(name: str):
    with pytest.raises(InputError, match="own-1 to own-4"):
        make_methods([name])


def test_every_repairing_method_is_one_of_the_shared_kind():
    assert all(isinstance(method, AbstractRepair) for method in make_methods(REPAIRS))
