"""What is damaged is found, never served, and mended from the text; what is left over is removed."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
from dataclasses import replace

import pytest
import torch

from kvpacket_rag.corpus.document import Document
from kvpacket_rag.engine.anchors import PacketSpec
from kvpacket_rag.errors import DamagedError, InputError, MismatchError, StorageFullError, StoreError
from kvpacket_rag.packets import codec
from kvpacket_rag.packets.anchor import Anchor
from kvpacket_rag.packets.number_formats import blocks_of, dense, quantize, storage_named
from kvpacket_rag.packets.packet import GroupStates
from tests.conftest import HANDBOOK, blob_bytes, handbook, tiny_model


def blobs(store):
    return sorted(path for path in (store.folder / "packets").rglob("*") if path.is_file())


def ask_all(store):
    store.forget_packets()
    return store.packets([hit.chunk for hit in store.search("lamp", k=50)])


def truncate(path, other):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path, other):
    path.write_bytes(b"")


def lengthen(path, other):
    path.write_bytes(path.read_bytes() + b"x")


def flip(path, other):
    data = bytearray(path.read_bytes())
    data[random.Random(1).randrange(len(data))] ^= 4
    path.write_bytes(data)


def swap(path, other):
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


@pytest.mark.parametrize("damage", [truncate, empty, lengthen, flip, swap])
def test_a_damaged_packet_is_found_never_served_and_rebuilt(store, damage):
    before = blob_bytes(store)
    paths = blobs(store)
    damage(paths[0], paths[1])
    store._heal = False
    with pytest.raises(DamagedError, match="kvpacket verify --repair"):
        ask_all(store)
    report = store.verify()
    assert len(report.damaged) == (2 if damage is swap else 1)
    assert not report.clean
    mended = store.verify(repair=True)
    assert mended.clean
    assert mended.repaired == len(report.damaged)
    assert ask_all(store).built == 0
    assert sorted(map(len, blob_bytes(store).values())) == sorted(map(len, before.values()))


def test_a_bit_flipped_anywhere_is_found(store):
    path = blobs(store)[0]
    whole = path.read_bytes()
    places = random.Random(2)
    for _ in range(60):
        data = bytearray(whole)
        data[places.randrange(len(data))] ^= 1 << places.randrange(8)
        path.write_bytes(data)
        assert len(store.verify().damaged) == 1
    path.write_bytes(whole)
    assert store.verify().clean


def test_a_missing_file_is_reported_and_rebuilt_on_use(store):
    blobs(store)[0].unlink()
    ((_, fault),) = store.verify().damaged
    assert fault == "the file is missing"
    assert ask_all(store).built == 1
    assert store.verify().clean


def test_leftover_files_are_reported_and_collected(store):
    folder = store.folder / "packets"
    (folder / "zz").mkdir()
    (folder / "zz" / "orphan.safetensors").write_bytes(b"x")
    (folder / "zz" / "half.tmp").write_bytes(b"x")
    assert set(store.verify().orphans) == {"zz/orphan.safetensors", "zz/half.tmp"}
    assert set(store.collect_garbage()) == {"zz/orphan.safetensors", "zz/half.tmp"}
    assert store.verify().clean
    assert ask_all(store).built == 0


def test_garbage_collection_during_a_build_loses_nothing(open_store, monkeypatch):
    store = open_store()
    seen = []

    def collect(state):
        if state.chunks and not seen:
            seen.append(store.collect_garbage())

    store.add(handbook(), progress=collect)
    assert seen[0]  # files of the build in progress were taken
    assert store.verify().clean
    assert ask_all(store).built == 0


def test_using_packets_never_changes_a_byte(store):
    from kvpacket_rag.answering.rag import RAG

    before = blob_bytes(store)
    rag = RAG(store, k=3)
    first = rag.ask("How long does the battery last?")
    rag.ask("What does a lamp cost?")
    store.forget_packets()
    assert rag.ask("How long does the battery last?").text == first.text
    assert blob_bytes(store) == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_store_as_it_was(store, monkeypatch, code):
    before = blob_bytes(store)

    def full(descriptor):
        raise OSError(code, "No space left on device")

    monkeypatch.setattr("kvpacket_rag.store.blobs.folder.os.fsync", full)
    with pytest.raises(StorageFullError, match="full"):
        store.add([Document("a new document about zebras", id="new")])
    monkeypatch.undo()
    assert blob_bytes(store) == before
    assert {d.id for d in store.documents()} == set(HANDBOOK)
    assert store.verify().clean


def test_a_full_database_leaves_the_store_as_it_was(store, monkeypatch):
    before = blob_bytes(store)
    with store._database.reading() as connection:
        pages = connection.exec_driver_sql("pragma page_count").scalar()

    import sqlalchemy as sa

    @sa.event.listens_for(store._database._engine, "begin")
    def small(connection):
        connection.exec_driver_sql(f"pragma max_page_count={pages}")

    with pytest.raises(StorageFullError, match="disk"):
        store.add([Document(f"zebra {n} " * 40, id=f"z{n}") for n in range(40)])
    sa.event.remove(store._database._engine, "begin", small)
    assert set(HANDBOOK) <= {d.id for d in store.documents()}
    assert set(before) <= set(blob_bytes(store))
    assert store.verify().clean


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(open_store, tmp_path):
    (tmp_path / "kb").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="cannot be"):
        open_store()


def test_a_store_below_a_file_is_refused(open_store, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="No store can be made"):
        open_store("file/kb")


def test_a_file_that_is_no_database_is_damaged(open_store, tmp_path):
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "store.db").write_bytes(b"not a database, whatever its name " * 50)
    with pytest.raises(DamagedError, match=r"store\.db"):
        open_store()


def test_a_damaged_database_is_named(store, open_store):
    store.close()
    path = store.folder / "store.db"
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xff" * (4096 - 100)
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"store\.db"):
        open_store().documents()


def test_a_store_of_a_newer_release_is_refused(store, open_store):
    store.close()
    connection = sqlite3.connect(store.folder / "store.db")
    connection.execute("update alembic_version set version_num='9999'")
    connection.commit()
    connection.close()
    with pytest.raises(MismatchError, match="newer release") as raised:
        open_store()
    assert raised.value.found == "9999"


def test_a_pickle_in_the_folder_is_never_opened(store, open_store):
    (store.folder / "packets" / "index.pkl").write_bytes(b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.")
    assert ask_all(open_store()).built == 0


# -- bytes --------------------------------------------------------------------------------------------------------


def made(storage="float32", name="llama"):
    model = tiny_model(name)
    spec = PacketSpec.of(model, Anchor.NONE, storage_named(storage))
    kept = None if spec.storage.bits else spec.storage.dtype
    return model.encode([list(range(5, 95))], storage=kept)[0], spec


def bytes_of(packet, spec):
    return codec.encode(packet, spec.fingerprint, spec.storage)


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek-v3-latent"])
def test_a_packet_read_back_is_the_packet_written(storage, name):
    packet, spec = made(storage, name)
    again = codec.decode(bytearray(bytes_of(packet, spec)), spec.fingerprint, "p")
    assert (again.token_ids, again.header, again.trailer, again.base_position) == (packet.token_ids, 0, 0, 0)
    for one, two in zip(packet.states, again.states, strict=True):
        assert one.keys.dtype == spec.storage.dtype
        assert torch.equal(one.keys, two.keys)
        assert torch.equal(one.values, two.values)


@pytest.mark.parametrize(("storage", "steps"), [("int8", 127), ("int4", 15)])
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek-v3-latent"])
def test_a_quantised_packet_is_read_back_to_half_a_step_and_is_small(storage, steps, name):
    packet, spec = made(storage, name)
    data = bytes_of(packet, spec)
    again = codec.decode(bytearray(data), spec.fingerprint, "p")
    for one, two in zip(packet.states, again.states, strict=True):
        for kind, dim in (("keys", -2), ("values", -1)):
            before, after = getattr(one, kind), dense(getattr(two, kind))
            assert after.shape == before.shape
            for block, read in zip(before.split(64, dim), after.split(64, dim), strict=True):
                span = block.abs().amax(dim, keepdim=True) * (2 if steps == 15 else 1)
                # Half a step, and what 16 bit round: the step, the smallest number, and the result.
                assert ((block - read).abs() <= span * (0.51 / steps + 3e-3)).all()
    plain = bytes_of(*made("float16", name))
    assert len(data) < len(plain) * (0.75 if storage == "int8" else 0.5)  # headers weigh much in a tiny packet


def test_what_is_answered_from_a_packet_just_built_is_what_is_answered_after_reading_it(open_store):
    for storage in ("int8", "int4"):
        store = open_store(storage, storage=storage)
        store.add(handbook())
        chunk = store.chunks()[0]
        with store._database.writing() as connection:
            connection.exec_driver_sql("delete from packets")
        built = store.packets([chunk])
        store.forget_packets()
        read = store.packets([chunk])
        assert (built.built, read.built) == (1, 0)
        for one, two in zip(built.packets[0].states, read.packets[0].states, strict=True):
            assert torch.equal(dense(one.keys), dense(two.keys))
            assert torch.equal(dense(one.values), dense(two.values))
        assert store.settings.storage == storage
        assert not store.verify().damaged


def test_numbers_of_every_size_and_shape_survive_quantising():
    for shape in ((1, 1, 1, 16), (2, 1, 65, 16), (1, 3, 64, 80), (1, 1, 3, 7)):
        for numbers in (
            torch.zeros(shape),
            torch.full(shape, -3.0),
            torch.randn(shape) * 1e-2,
            torch.randn(shape) * 1e4,
        ):
            for bits in (8, 4):
                for dim in (-2, -1):
                    read = dense(quantize(numbers, bits, dim))
                    assert torch.isfinite(read).all()
                    assert (read - numbers).abs().max() <= numbers.abs().max() * (0.14 if bits == 4 else 0.01) + 1e-7


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dim", [-2, -1])
def test_quantised_numbers_are_cut_and_read_in_blocks_as_whole(bits, dim):
    numbers = torch.randn(5, 2, 130, 7)
    small = quantize(numbers, bits, dim)
    whole = dense(small)
    assert small.shape == numbers.shape
    assert small.nbytes < numbers.nbytes / 2
    for count in (1, 64, 65, 130):
        assert torch.equal(dense(small.first(count)), whole[:, :, :count])
    parts = list(blocks_of(small))
    assert [part.start for part, _ in parts] == [0, 64, 128]
    assert torch.equal(torch.cat([part for _, part in parts], 2), whole)


@pytest.mark.parametrize("storage", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek-v3-latent"])
def test_a_quantised_packet_is_placed_as_its_numbers_are(storage, name):
    packet, spec = made(storage, name)
    small = codec.decode(bytearray(bytes_of(packet, spec)), spec.fingerprint, "p")
    plain = replace(small, states=tuple(GroupStates(dense(s.keys), dense(s.values)) for s in small.states))
    caches = []
    for one in (small, plain, small.cut(3), plain.cut(3)):
        caches.append(tiny_model(name).allocate(small.length + 5))
        caches[-1].place(one.states, delta=7)
    for first, second in ((0, 1), (2, 3)):
        length = caches[first].length
        for a, b in zip(*(caches[n].read(0, 0, length, torch.float32) for n in (first, second)), strict=True):
            assert torch.equal(a.keys, b.keys)
            assert torch.equal(a.values, b.values)


def test_numbers_too_large_to_quantise_are_refused_with_what_to_do():
    packet, spec = made("int8")
    packet.states[0].keys[0, 0, 0, 0] = 1e6
    with pytest.raises(InputError, match="storage='bfloat16'"):
        bytes_of(packet, spec)


def test_a_format_that_is_none_is_refused():
    with pytest.raises(InputError, match="bfloat16, float16, float32, int8, int4; got 'int2'"):
        storage_named("int2")


@pytest.mark.parametrize("storage", ["float32", "int8", "int4"])
def test_equal_packets_have_equal_bytes(storage):
    packet, spec = made(storage)
    assert bytes_of(packet, spec) == bytes_of(packet, spec)


def test_a_packet_of_another_fingerprint_is_refused():
    packet, spec = made()
    other = made("float16")[1].fingerprint
    with pytest.raises(MismatchError) as raised:
        codec.decode(bytearray(bytes_of(packet, spec)), other, "p")
    assert raised.value.field == "fingerprint"


@pytest.mark.parametrize(
    "data", [b"", b"short", b"\xff" * 64, b"\x02\x00\x00\x00\x00\x00\x00\x00{}", b"\x80\x04pickle" * 9]
)
def test_bytes_that_are_no_packet_are_damaged(data):
    with pytest.raises(DamagedError):
        codec.decode(bytearray(data), made()[1].fingerprint, "p")


@pytest.mark.parametrize("storage", ["float32", "int8", "int4"])
def test_random_bytes_in_the_header_never_do_more_than_raise(storage):
    packet, spec = made(storage)
    whole = bytes_of(packet, spec)
    dice = random.Random(3)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(1200)] = dice.randrange(256)
        try:
            codec.decode(data, spec.fingerprint, "p")
        except (DamagedError, MismatchError):
            continue
