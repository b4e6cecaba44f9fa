"""A store on SQLite and folders, on PostgreSQL and S3: the same behaviour, on real servers over the network."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import DamagedError, InputError, MismatchError, NotFoundError, StoreError
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder, handbook
from tests.support import servers

QUESTION = "how long does the battery last"


@pytest.fixture(scope="module")
def server():
    with servers.postgresql() as address:
        yield address


@pytest.fixture(scope="module")
def bucket():
    with servers.s3() as environment:
        yield environment


@pytest.fixture(params=["folder", "folder+objects", "postgresql+folder", "postgresql+s3"])
def place(request, tmp_path, monkeypatch):
    """Arguments that open the same new store each time."""
    monkeypatch.setenv("KVPACKET_HOME", str(tmp_path / "home"))
    name = uuid.uuid4().hex[:12]
    match request.param:
        case "folder":
            return {"location": str(tmp_path / "kb")}
        case "folder+objects":
            return {"location": str(tmp_path / "kb"), "blobs": f"memory://{name}"}
        case "postgresql+folder":
            address = request.getfixturevalue("server")
            return {"location": address, "blobs": (tmp_path / "blobs").as_uri(), "namespace": f"n{name}"}
    for key, value in request.getfixturevalue("bucket").items():
        monkeypatch.setenv(key, value)
    return {"location": request.getfixturevalue("server"), "blobs": f"s3://packets/{name}", "namespace": f"n{name}"}


@pytest.fixture
def opened(place, llama):
    stores = []

    def make(**options):
        given = {
            "model": llama,
            "embedder": HashEmbedder(),
            "chunk_tokens": 60,
            "storage": "float32",
            "first_anchor": "passages",
        }
        stores.append(DocumentStore.open(**{**place, **given, **options}))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_a_store_answers_alike_wherever_it_lies(opened, open_store):
    store, reference = opened(), open_store("reference", namespace=opened().namespace)
    for one in (store, reference):
        one.add(handbook())
    answers = [RAG(one, k=3).ask(QUESTION) for one in (store, reference)]
    assert answers[0].text == answers[1].text
    assert [hit.chunk.id for hit in answers[0].sources] == [hit.chunk.id for hit in answers[1].sources]
    assert answers[0].usage.packet_tokens == answers[1].usage.packet_tokens > 0
    for field in ("documents", "chunks", "packets", "packet_tokens", "packet_bytes"):
        assert getattr(store.info(), field) == getattr(reference.info(), field)
    assert store.info().database_bytes > 0


def test_what_was_added_is_there_when_opened_again_and_blobs_are_remembered(opened, place):
    opened().add(handbook())
    again = opened(blobs=None)
    again.forget_packets()
    answer = RAG(again, k=2).ask(QUESTION)
    assert answer.usage.packets_built == 0
    assert again.verify().clean


def test_documents_change_and_go_with_their_packets(opened):
    store, other = opened(), opened()
    store.add(handbook())
    store.add([Document("The battery lasts eleven days now.", id="battery")])
    assert any("eleven" in hit.chunk.text for hit in other.search(QUESTION))
    store.remove("battery")
    assert not any(hit.chunk.document == "battery" for hit in other.search(QUESTION, k=10))
    with pytest.raises(NotFoundError, match="no document 'battery'"):
        store.remove("battery")
    assert store.verify().clean
    assert store.collect_garbage() == []


def test_a_file_that_no_row_names_is_found_and_removed(opened):
    store = opened()
    store.add(handbook())
    store._packets.blobs.write("ab/ab-orphan.safetensors", b"left over")
    assert store.verify().orphans == ("ab/ab-orphan.safetensors",)
    assert store.collect_garbage() == ["ab/ab-orphan.safetensors"]
    assert store.verify().clean


def test_a_damaged_file_is_found_not_served_and_repaired(opened):
    store = opened()
    store.add(handbook())
    blobs = store._packets.blobs
    file = sorted(blobs.files())[0]
    size = store.info().packet_bytes
    blobs.remove([file])
    blobs.write(file, b"x" * 1000)
    store.forget_packets()
    store._heal = False
    with pytest.raises(DamagedError):
        store.packets(store.chunks())
    assert len(store.verify().damaged) == 1
    assert store.verify(repair=True).clean
    assert store.info().packet_bytes == size
    assert store.packets(store.chunks()).built == 0


def test_a_limit_holds(opened):
    store = opened()
    store.add(handbook())
    store.max_bytes = store.info().packet_bytes // 2
    assert store.info().packet_bytes <= store.max_bytes
    assert len(list(store._packets.blobs.files())) == store.info().packets
    assert RAG(store, k=4).ask(QUESTION).usage.packets_built > 0


def test_adapters_travel_in_the_database(opened, llama):
    import torch

    from kvpacket_rag.packets.adapter import Adapter

    store = opened()
    store.add(handbook())
    adapter = Adapter.of({"bridge": torch.zeros(2, llama.hidden_size)})
    store.remake(adapter=adapter)
    assert opened(first_anchor=None).model.adapter.digest == adapter.digest


def test_another_place_for_packets_is_refused_by_name(opened, place, tmp_path):
    opened().add(handbook())
    with pytest.raises(MismatchError) as caught:
        opened(blobs=(tmp_path / "elsewhere").as_uri())
    assert caught.value.field == "blobs"


def test_a_store_that_is_only_read_answers_and_refuses_changes(opened):
    store = opened()
    store.add(handbook())
    expected = RAG(store, k=3).ask(QUESTION)
    reader = opened(read_only=True)
    assert RAG(reader, k=3).ask(QUESTION).text == expected.text
    for change in (
        lambda: reader.add([Document("new", id="new")]), lambda: reader.remove("care"), reader.collect_garbage,
        lambda: setattr(reader, "max_bytes", 1),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="read_only"):
            change()
    files = set(store._packets.blobs.files())
    first = reader.packets(reader.chunks()[:1])
    assert len(first.packets) == 1
    assert set(store._packets.blobs.files()) == files
    store.max_bytes = 1
    store.max_bytes = None
    reader.forget_packets()
    assert RAG(reader, k=3).ask(QUESTION).text == expected.text  # built, and forgotten
    assert store.info().packets == 0


def test_opening_what_is_not_there_says_so(opened):
    with pytest.raises(NotFoundError, match="no store at"):
        opened(create=False)
    with pytest.raises(NotFoundError, match="no store at"):
        opened(read_only=True)


# -- namespaces ---------------------------------------------------------------------------------------------


@pytest.fixture
def tenants(opened):
    """Two stores at one location."""
    own = uuid.uuid4().hex[:8]
    return opened(namespace=f"tenant-a-{own}"), opened(namespace=f"tenant-b-{own}")


def test_namespaces_share_nothing_and_show_nothing(tenants):
    one, two = tenants
    one.add([Document("The secret of tenant A is plum.", id="shared-id", metadata={"who": "a"}), *handbook()])
    two.add([Document("The secret of tenant B is pear.", id="shared-id", metadata={"who": "b"})])
    assert [d.metadata for d in two.documents()] == [{"who": "b"}]
    assert [hit.chunk.text for hit in two.search("secret plum", k=50)] == ["The secret of tenant B is pear."]
    assert two.info().documents == 1
    assert two.search("plum", filter={"who": "a"}) == []
    assert two.find("The secret of tenant A is plum.") == []
    ids = [chunk.id for chunk in one.chunks()]
    assert two.get(ids) == {}
    assert two.of_documents(["battery"]) == []
    with pytest.raises(NotFoundError) as caught:
        two.remove("battery")
    assert "battery" not in str(caught.value).replace("'battery'", "")
    two.remove("shared-id")
    assert one.verify().clean
    assert len(one.documents()) == 5
    assert RAG(one, k=2).ask(QUESTION).usage.packets_built == 0


def test_equal_text_has_a_packet_in_each_namespace(tenants):
    one, two = tenants
    for store in (one, two):
        store.add(handbook())
        assert store.info().packets == len(store.chunks())
    keys = [{file for file in store._packets.blobs.files()} for store in (one, two)]
    assert not keys[0] & keys[1]
    assert one._packets.has(next(iter(keys[0])).split("/")[1].split("-")[0])
    assert not two._packets.has(next(iter(keys[0])).split("/")[1].split("-")[0])


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", ".a", "a.", "-a", "x" * 49, "ä", 'a"b'])
def test_names_that_cannot_be_folders_and_schemas_are_refused(name, tmp_path):
    with pytest.raises(InputError, match="namespace"):
        DocumentStore.open(tmp_path / "kb", namespace=name)
    assert not (tmp_path / "kb").exists()


# -- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "options", "message"),
    [
        ("mysql://localhost/kb", {}, "mysql"),
        ("postgresql://tester@127.0.0.1:1/kb", {"blobs": "file:///tmp/x"}, "cannot be used"),
        ("postgresql://[broken", {}, "address"),
        ("kb", {"blobs": "nowhere://bucket/x"}, "nowhere"),
    ],
)
def test_addresses_that_cannot_be_used_are_told_in_one_sentence(location, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("psycopg")
    with pytest.raises((InputError, StoreError), match=message) as caught:
        DocumentStore.open(location, **options)
    assert "\n" not in str(caught.value)


def test_a_password_is_never_shown(server, tmp_path):
    address = server.replace("tester@", "tester:geheim@")
    with DocumentStore.open(address, blobs=tmp_path.as_uri(), namespace="password") as store:
        assert "geheim" not in store.location + repr(store)
    with pytest.raises(NotFoundError) as caught:
        DocumentStore.open(address, namespace="nothing-here", create=False)
    assert "geheim" not in str(caught.value)


def test_a_database_without_a_place_for_packets_asks_for_one(server):
    with pytest.raises(InputError, match="blobs="):
        DocumentStore.open(server, namespace="placeless")


def test_text_that_a_database_cannot_hold_is_refused_by_name(server, tmp_path, llama):
    options = {"model": llama, "embedder": HashEmbedder(), "chunk_tokens": 60, "namespace": "zero"}
    with DocumentStore.open(server, blobs=tmp_path.as_uri(), **options) as store:
        with pytest.raises(InputError, match="cannot hold a value"):
            store.add([Document("a zero \x00 inside", id="zero")])
        with pytest.raises(InputError, match="cannot hold a value"):
            store.add([Document("a long id", id="x" * 2000)])
        store.add(handbook())
        assert store.verify().clean


def test_files_in_a_folder_beside_rows_are_kept_where_they_are(tmp_path, llama):
    options = {"model": llama, "embedder": HashEmbedder(), "chunk_tokens": 60}
    with DocumentStore.open(tmp_path / "kb", **options) as store:
        store.add(handbook())
    with pytest.raises(MismatchError, match="in its folder"):
        DocumentStore.open(tmp_path / "kb", blobs="memory://later")


# -- copies of what lies elsewhere --------------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path, llama, monkeypatch):
    monkeypatch.setenv("KVPACKET_HOME", str(tmp_path / "home"))
    options = {
        "model": llama,
        "embedder": HashEmbedder(),
        "chunk_tokens": 60,
        "blobs": f"memory://{uuid.uuid4().hex}",
        "first_anchor": "passages",
    }
    store = DocumentStore.open(tmp_path / "kb", **options)
    store.add(handbook())
    yield store
    store.close()


def test_copies_are_used_and_a_damaged_one_is_fetched_again(remote):
    blobs, chunks = remote._packets.blobs, remote.chunks()
    copies = sorted(blobs._copies.folder.rglob("*.safetensors"))
    assert len(copies) == len(chunks)
    copies[0].write_bytes(b"short")
    copies[1].write_bytes(copies[1].read_bytes()[:-1] + b"!")
    remote.forget_packets()
    assert remote.packets(chunks).built == 0
    assert sorted(blobs._copies.folder.rglob("*.safetensors")) == copies
    assert remote.verify().clean


def test_verification_reads_what_lies_elsewhere_and_not_the_copy(remote):
    blobs = remote._packets.blobs
    file = sorted(blobs.files())[0]
    blobs._filesystem.pipe_file(blobs._path(file), b"other bytes")
    assert len(remote.verify().damaged) == 1


def test_copies_stay_below_their_limit(remote, tmp_path):
    blobs = remote._packets.blobs
    largest = max(path.stat().st_size for path in blobs._copies.folder.rglob("*.safetensors"))
    with DocumentStore.open(
        tmp_path / "kb", model=remote.model, embedder=HashEmbedder(), cache_bytes=3 * largest
    ) as small:
        small.packets(small.chunks())
        held = sum(path.stat().st_size for path in blobs._copies.folder.rglob("*.safetensors"))
        assert 0 < held <= 3 * largest
    with DocumentStore.open(tmp_path / "kb", model=remote.model, embedder=HashEmbedder(), cache_bytes=0) as none:
        assert none.packets(none.chunks()).built == 0


def test_a_store_of_objects_that_fails_is_an_error_of_ours(remote, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the network is gone")

    filesystem = remote._packets.blobs._filesystem
    monkeypatch.setattr(type(filesystem), "pipe_file", fail)
    with pytest.raises(StoreError, match="network is gone"):
        remote.add([Document("More about the lamp.", id="more")])
    monkeypatch.undo()
    assert remote.verify().clean
    assert len(remote.documents()) == 4


def test_several_may_make_a_store_at_the_same_moment(place, llama):
    ready = threading.Barrier(6)

    def make(_):
        ready.wait()
        with DocumentStore.open(**place, model=llama, embedder=HashEmbedder()) as store:
            return store.documents()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(make, range(6))) == [[]] * 6
