"""`kvpacket` over stores of every kind of address: namespaces, databases, bundles, and models that have moved."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kvpacket_rag.cli.main import app
from kvpacket_rag.errors import InputError, KVPacketError, NotFoundError, SignatureError, StoreError
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder, handbook, tiny_model
from tests.support import servers


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def made(llama, tmp_path):
    """Make a store by address and namespace, with one document of that namespace's name besides the handbook."""

    def make(location, **options):
        with DocumentStore.open(
            location, model=llama, embedder=HashEmbedder(), chunk_tokens=60, first_anchor="passages", **options
        ) as store:
            store.add(handbook())

    return make


def ids(*arguments):
    return [document["id"] for document in json.loads(run(*arguments, "--json").stdout)]


def test_commands_see_the_namespace_they_are_told(made, tmp_path, monkeypatch):
    made(tmp_path / "kb", namespace="tenant-a")
    assert len(ids("--namespace", "tenant-a", "ls", tmp_path / "kb")) == 4
    with pytest.raises(NotFoundError, match="no store at"):
        run("ls", tmp_path / "kb")
    monkeypatch.setenv("KVPACKET_NAMESPACE", "tenant-a")
    run("rm", tmp_path / "kb", "care")
    assert "care" not in ids("ls", tmp_path / "kb")
    assert json.loads(run("info", tmp_path / "kb", "--json").stdout)["documents"] == 3
    assert run("verify", tmp_path / "kb").exit_code == 0
    assert run("gc", tmp_path / "kb").exit_code == 0


def test_questions_are_asked_with_a_filter(made, tmp_path, monkeypatch):
    made(tmp_path / "kb")
    monkeypatch.setattr("kvpacket_rag.store.configuration.SentenceEmbedder", lambda name: HashEmbedder())
    monkeypatch.setattr("kvpacket_rag.store.configuration.load_engine", lambda *_, **__: tiny_model("llama"))

    def ask(*options):
        return json.loads(
            run("ask", tmp_path / "kb", "What does it cost?", "--max-new-tokens", 3, "--json", *options).stdout
        )

    some = ask("--filter", '{"part": {"$in": ["price", "care"]}}', "--k", 9)
    assert {source["document"] for source in some["sources"]} == {"price", "care"}
    for options in (["--filter", '{"part": "none"}'], ["--min-score", "1"]):
        assert (ask(*options)["answer"], ask(*options)["found"]) == ("No document fits the question's filter.", False)
    for text, told in (
        ("{part}", "must be JSON"),
        ("[1]", "must be of the kind Mapping"),
        ('{"a": {"$is": 1}}', "operator '\\$is'"),
    ):
        with pytest.raises(InputError, match=told):
            run("ask", tmp_path / "kb", "What does it cost?", "--filter", text)


def test_a_bundle_is_listed_counted_and_verified_without_a_store(made, tmp_path):
    made(tmp_path / "kb")
    run("export", tmp_path / "kb", tmp_path / "kb.kvpb")
    assert len(ids("ls", tmp_path / "kb.kvpb")) == 4
    assert json.loads(run("info", tmp_path / "kb.kvpb", "--json").stdout)["chunks"] > 4
    assert run("verify", tmp_path / "kb.kvpb").exit_code == 0
    for change in (
        ("rm", tmp_path / "kb.kvpb", "care"),
        ("gc", tmp_path / "kb.kvpb"),
        ("cap", tmp_path / "kb.kvpb", "1GB"),
    ):
        with pytest.raises(StoreError, match="read_only"):
            run(*change)
    assert [path.name for path in tmp_path.iterdir() if "kvpb" in path.name] == ["kb.kvpb"]


def test_bundles_are_signed_and_checked_from_the_command_line(made, tmp_path):
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    (tmp_path / "key.pub").write_bytes(
        key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    )
    made(tmp_path / "kb")
    run("export", tmp_path / "kb", tmp_path / "signed.kvpb", "--sign", tmp_path / "key.pem")
    run("export", tmp_path / "kb", tmp_path / "plain.kvpb")
    with pytest.raises(SignatureError):
        run("import", tmp_path / "plain.kvpb", tmp_path / "other", "--verify", tmp_path / "key.pub")
    out = run("import", tmp_path / "signed.kvpb", tmp_path / "other", "--verify", tmp_path / "key.pub").stdout
    assert out.startswith("4 added")


def test_a_database_is_named_by_its_address(made, tmp_path):
    with servers.postgresql() as address:
        with pytest.raises(NotFoundError, match="no store at"):
            run("ls", address)
        made(address, blobs=(tmp_path / "blobs").as_uri())
        assert len(ids("ls", address)) == 4
        run("export", address, tmp_path / "kb.kvpb")
        run("--namespace", "default", "import", tmp_path / "kb.kvpb", tmp_path / "folder")
        assert ids("ls", tmp_path / "folder") == ids("ls", address)
        run("rm", address, "care")
        assert run("verify", address).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "mysql://host/kb"], "not supported"),
        (["--namespace", "Über", "ls", "kb"], "namespace"),
        (["ls", "nothing"], "no store at"),
        (["import", "nothing.kvpb", "kb"], "no bundle"),
    ],
)
def test_careless_addresses_are_told_what_is_wrong(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KVPacketError, match=message):
        run(*arguments)
    assert not list(tmp_path.iterdir())


def test_a_model_that_has_moved_is_found_where_it_lies_now(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("kvpacket_rag.store.configuration.SentenceEmbedder", lambda name: HashEmbedder())
    before, now, kb = tmp_path / "before", tmp_path / "now", tmp_path / "kb"
    llama._hf.save_pretrained(before)
    llama.text.tokenizer.save_pretrained(before)
    settings = {"embedder": HashEmbedder(), "chunk_tokens": 60, "first_anchor": "passages"}
    with DocumentStore.open(kb, model=str(before), **settings) as store:
        store.add(handbook())
    before.rename(now)
    ask = ("ask", kb, "What does it cost?", "--k", "2", "--max-new-tokens", "2", "--json")
    with pytest.raises(KVPacketError, match="before"):
        run(*ask)
    assert json.loads(run(*ask, "--model", now).stdout)["usage"]["packets_built"] == 0
