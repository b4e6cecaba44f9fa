"""Bundles signed and checked, and answered from without a store."""

from __future__ import annotations

import hashlib
import struct

import pytest

from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.errors import (
    DamagedError,
    InputError,
    KVPacketError,
    MismatchError,
    NotFoundError,
    SignatureError,
    StoreError,
)
from kvpacket_rag.store.bundles.importer import import_bundle
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder

QUESTION = "how long does the battery last"


@pytest.fixture
def bundle(store, tmp_path):
    store.export(tmp_path / "kb.kvpb")
    return tmp_path / "kb.kvpb"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


# -- signatures ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Files of two key pairs: private and public, and those of somebody else."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    folder, made = tmp_path_factory.mktemp("keys"), []
    for name in ("own", "other"):
        private = Ed25519PrivateKey.generate()
        pem = serialization.Encoding.PEM
        files = folder / f"{name}.pem", folder / f"{name}.pub"
        files[0].write_bytes(
            private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        files[1].write_bytes(private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
        made.append(files)
    return made


def test_a_signed_bundle_is_taken_in_with_its_key_and_without(store, open_store, keys, tmp_path):
    (private, public), _ = keys
    store.export(tmp_path / "kb.kvpb", sign=private)
    for folder, verify in (("checked", public), ("unchecked", None)):
        report = import_bundle(tmp_path / "kb.kvpb", tmp_path / folder, verify=verify)
        assert report.added == 4


def test_a_bundle_without_the_signature_asked_for_changes_nothing(bundle, target, store, keys, tmp_path):
    (private, public), (_, stranger) = keys
    signed = tmp_path / "signed.kvpb"
    store.export(signed, sign=private)
    data = signed.read_bytes()
    (length,) = struct.unpack("<Q", data[8:16])
    flipped = bytearray(data)
    flipped[16 + length + 32] ^= 1  # the first byte of the signature
    (tmp_path / "flipped.kvpb").write_bytes(flipped)
    rewritten = bytearray(data)
    rewritten[20] ^= 1  # the header, with a digest that fits it
    rewritten[16 + length : 16 + length + 32] = hashlib.sha256(rewritten[16 : 16 + length]).digest()
    (tmp_path / "rewritten.kvpb").write_bytes(rewritten)
    for path, key in (
        (bundle, public),
        (signed, stranger),
        (tmp_path / "flipped.kvpb", public),
        (tmp_path / "rewritten.kvpb", public),
    ):
        with pytest.raises(KVPacketError) as caught:
            import_bundle(path, target, verify=key)
        assert isinstance(caught.value, SignatureError | DamagedError)
    assert not (target / "packets").exists()


def test_keys_that_are_none_are_told_what_to_do(store, keys, tmp_path):
    (private, public), _ = keys
    (tmp_path / "text.pem").write_text("no key")
    for key, error in (
        (tmp_path / "missing.pem", NotFoundError),
        (tmp_path / "text.pem", InputError),
        (public, InputError),
    ):
        with pytest.raises(error):
            store.export(tmp_path / "kb.kvpb", sign=key)
        assert not (tmp_path / "kb.kvpb").exists()
    store.export(tmp_path / "kb.kvpb", sign=private)
    with pytest.raises(InputError, match="openssl"):
        import_bundle(tmp_path / "kb.kvpb", tmp_path / "kb2", verify=private)


# -- answering straight from a bundle -----------------------------------------------------------------------


def reading(path, llama, **options):
    return DocumentStore.open(path, model=llama, embedder=HashEmbedder(), read_only=True, **options)


def test_a_bundle_answers_as_the_store_it_came_from(store, llama, tmp_path):
    store.export(tmp_path / "kb.kvpb")
    expected = RAG(store, k=3).ask(QUESTION)
    with reading(tmp_path / "kb.kvpb", llama) as bundle:
        answer = RAG(bundle, k=3).ask(QUESTION)
        assert (answer.text, answer.usage.packets_built) == (expected.text, 0)
        assert [hit.chunk.id for hit in answer.sources] == [hit.chunk.id for hit in expected.sources]
        assert bundle.verify().clean
        assert bundle.info().packets == store.info().packets
        assert [d.id for d in bundle.documents()] == [d.id for d in store.documents()]
        for change in (
            lambda: bundle.add([Document("new", id="new")]),
            lambda: bundle.remove("care"),
            bundle.collect_garbage,
        ):
            with pytest.raises(StoreError, match="read_only"):
                change()


def test_opening_a_bundle_reads_no_packet_and_leaves_nothing_behind(store, llama, tmp_path, monkeypatch):
    store.export(tmp_path / "kb.kvpb")
    data = bytearray((tmp_path / "kb.kvpb").read_bytes())
    data[-100] ^= 1  # in the last packet
    (tmp_path / "kb.kvpb").write_bytes(data)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with reading(tmp_path / "kb.kvpb", llama) as bundle:
        assert len(bundle.verify().damaged) == 1
        assert bundle.packets(bundle.chunks()).healed == 1  # in memory: nothing is written to a bundle
        bundle._heal = False
        bundle.forget_packets()
        with pytest.raises(DamagedError):
            bundle.packets(bundle.chunks())
        assert list((tmp_path / "temporary").iterdir())
    assert not list((tmp_path / "temporary").iterdir())


def test_bundles_that_are_no_store_are_refused(store, llama, keys, tmp_path):
    store.export(tmp_path / "kb.kvpb")
    store.add([Document("More about the lamp.", id="more")])
    store.export(tmp_path / "later.kvpb", since=tmp_path / "kb.kvpb")
    with pytest.raises(InputError, match="changed since another"):
        reading(tmp_path / "later.kvpb", llama)
    with pytest.raises(MismatchError, match="namespace"):
        reading(tmp_path / "kb.kvpb", llama, namespace="tenant-a")
    with pytest.raises(SignatureError, match="not signed"):
        reading(tmp_path / "kb.kvpb", llama, verify=keys[0][1])
    with pytest.raises(InputError, match="read_only"):
        DocumentStore.open(tmp_path / "kb.kvpb")
    (tmp_path / "kb.kvpb").write_bytes((tmp_path / "kb.kvpb").read_bytes()[:-1])
    with pytest.raises(DamagedError):
        reading(tmp_path / "kb.kvpb", llama)


def test_a_bundle_of_another_namespace_is_not_taken_in(bundle, tmp_path):
    with pytest.raises(MismatchError) as caught:
        import_bundle(bundle, tmp_path / "fresh", namespace="tenant-a")
    assert caught.value.field == "namespace"
