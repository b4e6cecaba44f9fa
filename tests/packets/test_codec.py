"""The codec, on packets of every shape and on bytes that are none."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpacket_rag.errors import KVPacketError
from kvpacket_rag.packets import codec
from kvpacket_rag.packets.fingerprint import Fingerprint
from kvpacket_rag.packets.number_formats import STORAGE, dense, storage_named
from kvpacket_rag.packets.packet import GroupStates, Packet

FINGERPRINT = Fingerprint(*(["x"] * 10))
SIZES = st.integers(1, 5)


@st.composite
def packets(draw):
    header, trailer, tokens = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 140))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0]))
    states = []
    for _ in range(draw(st.integers(1, 2))):
        layers, heads = draw(SIZES), draw(SIZES)
        shapes = [
            (layers, heads, header + tokens + trailer, draw(st.sampled_from([1, 3, 16, 65, 128]))) for _ in range(2)
        ]
        states.append(GroupStates(*(scale * torch.randn(shape, generator=generator) for shape in shapes)))
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=tokens, max_size=tokens))
    return Packet(tuple(ids), header, trailer, draw(st.integers(0, 10**6)), tuple(states))


def encoded(packet, name):
    storage = storage_named(name)
    if not storage.bits:
        states = (GroupStates(s.keys.to(storage.dtype), s.values.to(storage.dtype)) for s in packet.states)
        packet = Packet(packet.token_ids, packet.header, packet.trailer, packet.base_position, tuple(states))
    return packet, codec.encode(packet, FINGERPRINT, storage)


@settings(max_examples=60, deadline=None)
@given(packets(), st.sampled_from(sorted(STORAGE)))
def test_every_packet_comes_back_with_its_shape_and_within_its_rounding(packet, name):
    written, data = encoded(packet, name)
    again = codec.decode(bytearray(data), FINGERPRINT, "p")
    assert (again.token_ids, again.header, again.trailer) == (packet.token_ids, packet.header, packet.trailer)
    assert again.base_position == packet.base_position
    tolerance = {"int8": 0.01, "int4": 0.11}.get(name, 0.0)
    for before, after in zip(written.states, again.states, strict=True):
        for kind in ("keys", "values"):
            one, two = dense(getattr(before, kind)).float(), dense(getattr(after, kind)).float()
            assert one.shape == two.shape
            assert (one - two).abs().max() <= tolerance * one.abs().max() + 1e-6 * bool(tolerance)
    assert codec.encode(written, FINGERPRINT, storage_named(name)) == data


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_bytes_that_are_no_packet_raise_one_of_our_errors(data):
    try:
        codec.decode(bytearray(data), FINGERPRINT, "p")
    except KVPacketError:
        return
    raise AssertionError("random bytes were taken for a packet")


@settings(max_examples=200, deadline=None)
@given(packets(), st.sampled_from(["int8", "bfloat16"]), st.data())
def test_a_packet_changed_anywhere_is_read_or_refused_and_nothing_else(packet, name, data):
    bad = bytearray(encoded(packet, name)[1])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(bad), 2000) - 1))
        bad[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(bad)))
    for changed in (bad, bad[:cut]):
        try:
            codec.decode(bytearray(changed), FINGERPRINT, "p")
        except KVPacketError:
            continue
