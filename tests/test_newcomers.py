"""The most likely mistakes of someone who uses this for the first time: each is one sentence or two that say what to do."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvpacket_rag import RAG, Adapter, Document, DocumentStore, GenerationConfig, PacketModel, import_bundle
from kvpacket_rag.cli import main as cli
from kvpacket_rag.errors import KVPacketError
from tests.conftest import HashEmbedder, handbook, tiny_model

FOREIGN = re.compile(r"object has no attribute|not supported between|is not iterable|NoneType' object|Traceback")


@pytest.fixture
def there(store, open_store, llama, tmp_path):
    """What a newcomer has at hand: a store, an empty one, a model, a folder; and ways to open stores."""
    (tmp_path / "notes.txt").write_text("The lamp is green.", encoding="utf-8")

    def reopen(**options):
        with DocumentStore.open(
            store.folder, **{"model": llama, "embedder": HashEmbedder(), "chunk_tokens": 60, **options}
        ) as again:
            return again.add([Document("The lamp is new.")])

    return SimpleNamespace(
        kb=store,
        empty=open_store("empty"),
        model=llama,
        folder=tmp_path,
        reopen=reopen,
        make=open_store,
        rag=RAG(store),
    )


def closed(there):
    there.make("closed").close()
    return DocumentStore.open(there.folder / "closed", model=there.model, embedder=HashEmbedder())


def ask_closed(there):
    store = closed(there)
    store.add(handbook())
    store.close()
    return RAG(store).ask("How long does the battery last?")


def answer_from_bundle(there):
    there.kb.export(there.folder / "kb.kvpb")
    return DocumentStore.open(there.folder / "kb.kvpb", model=there.model, embedder=HashEmbedder())


class ForeignDocument:
    page_content = "The lamp is green."


class ForeignNode:
    def get_content(self):
        return "The lamp is green."


MISTAKES = {
    # -- the store
    "asking a store that holds nothing": (lambda t: RAG(t.empty).ask("Why?"), r"has no documents\. Add some with `kvpacket add"),
    "opening a store where there is none": (lambda t: DocumentStore.open(t.folder / "kbb", create=False), r"no store at .*kbb.*Make one with"),
    "opening a file": (lambda t: DocumentStore.open(t.folder / "notes.txt", model=t.model), "is a file"),
    "opening a bundle to write to it": (answer_from_bundle, "open it with read_only=True, or import it into a store"),
    "opening nothing": (lambda t: DocumentStore.open(None), "must be of the kind str or Path, got None. Give a folder"),
    "naming a database of another kind": (lambda t: DocumentStore.open("mysql://host/kb"), "postgresql://…; mysql:// is not supported"),
    "another model for a store": (lambda t: t.reopen(model=tiny_model("qwen2")), "was built with tiny-llama, the model given is tiny-qwen2"),
    "other chunks for a store": (lambda t: t.reopen(chunk_tokens=99), "made with chunk_tokens 60, now 99 is given. Leave it out"),
    "another number format for a store": (lambda t: t.reopen(storage="int4"), "made with storage 'float32', now 'int4' is given"),
    "a number format that is none": (lambda t: t.make("x", storage="int3"), "storage must be one of bfloat16"),
    "an anchor that is none": (lambda t: t.make("x", anchor="neutral"), "anchor must be one of passages"),
    "chunks of no size": (lambda t: t.make("x", chunk_tokens=0), "chunk_tokens must be at least 8, got 0"),
    "a size as text": (lambda t: t.make("x", chunk_tokens="256"), "chunk_tokens must be of the kind int, got str"),
    "a limit as text": (lambda t: setattr(t.kb, "max_bytes", "20GB"), "Give a number of bytes"),
    "a store where a model belongs": (lambda t: DocumentStore.open(t.folder / "x", model=t.kb), "Give a name, a folder, or PacketModel.from_pretrained"),
    "a function as embedder": (lambda t: DocumentStore.open(t.folder / "x", model=t.model, embedder=len), "an object with `name` and `embed"),
    "a namespace of many words": (lambda t: t.make("x", namespace="Tenant A"), "A namespace has 1 to 48 characters of a-z"),
    "using a store that was closed": (ask_closed, "was closed. Open the store again"),
    "writing to what is only read": (lambda t: t.reopen(read_only=True), "opened with read_only=True; nothing is written") ,
    # -- documents
    "adding a text instead of a document": (lambda t: t.kb.add("The lamp is green."), "kind Document, got str. Make one: Document"),
    "adding one document without a list": (lambda t: t.kb.add(Document("The lamp.")), "Give a list, even for one document"),
    "adding a dictionary": (lambda t: t.kb.add([{"text": "The lamp."}]), "kind Document, got dict. Make one"),
    "adding LangChain's document": (lambda t: t.kb.add([ForeignDocument()]), r"Document\(d\.page_content, metadata=d\.metadata\)"),
    "adding LlamaIndex's node": (lambda t: t.kb.add([ForeignNode()]), r"Document\(node\.get_content\(\), metadata=node\.metadata\)"),
    "a document without text": (lambda t: Document("  "), "has no text"),
    "metadata that is no JSON": (lambda t: Document("Lamp", metadata={"day": b""}), "which JSON cannot hold"),
    "metadata that is nothing": (lambda t: Document("Lamp", metadata=None), "Leave it out for none"),
    "a number as id": (lambda t: Document("Lamp", id=7), "The id of a document must be of the kind str, got int"),
    "a path that is not there": (lambda t: t.kb.add_paths(["noets/"]), "no file or folder noets.*Check the path"),
    "a file of a kind that is not read": (lambda t: t.kb.add_paths([Path(__file__)]), r"of no known kind \(\.py\)\. Known: \.txt"),
    "removing what is not there": (lambda t: t.kb.remove("batery"), "no document 'batery'.*battery"),
    "removing a document instead of its id": (lambda t: t.kb.remove(handbook()[0]), "id of a document must be of the kind str"),
    # -- questions
    "asking nothing": (lambda t: t.rag.ask(" "), "The question is empty"),
    "asking None": (lambda t: t.rag.ask(None), "The question must be of the kind str, got None"),
    "asking several in one": (lambda t: t.rag.ask(["Why?", "How?"]), "The question must be of the kind str, got list"),
    "a batch of one text": (lambda t: t.rag.ask_batch("Why?"), "kind list or tuple, got str"),
    "no chunks": (lambda t: t.rag.ask("Why?", k=0), "k must be at least 1, got 0"),
    "chunks as text": (lambda t: t.rag.ask("Why?", k="4"), "k must be of the kind int, got str"),
    "a method that is none": (lambda t: t.rag.ask("Why?", method="fast"), "method must be 'packet' or 'full', got 'fast'"),
    "a question longer than the window": (lambda t: t.rag.ask("Why? " * 4000), "Shorten the question or lower max_new_tokens"),
    "a filter as text": (lambda t: t.rag.ask("Why?", filter="care"), 'Give conditions such as {"lang": "en"}'),
    "settings as a dictionary": (lambda t: t.rag.ask("Why?", config={"max_new_tokens": 5}), "kind GenerationConfig, got dict"),
    "answers of no length": (lambda t: GenerationConfig(max_new_tokens=0), "max_new_tokens must be at least 1"),
    "history as text": (lambda t: t.rag.ask("Why?", history=["hello"]), 'Give {"role": "user", "content": "..."}'),
    "a turn of nobody": (lambda t: t.rag.ask("Why?", history=[{"role": "bot", "content": "x"}]), "the role system, user or assistant"),
    "a model where the store belongs": (lambda t: RAG(t.model), r"Open one with DocumentStore\.open"),
    "a path where the store belongs": (lambda t: RAG("kb/"), r"Open one with DocumentStore\.open"),
    # -- models
    "a name of another program": (lambda t: PacketModel.from_pretrained("llama3.2:1b"), "Give a name from `kvpacket models`"),
    "a device that is none": (lambda t: PacketModel.from_pretrained("smollm2-135m-instruct", device="gpu"), "Give cpu, cuda or cuda:N"),
    "an adapter's path instead of the adapter": (lambda t: t.kb.remake(adapter="a.safetensors"), r"Read one with Adapter\.load\(path\)"),
    "an adapter that is not there": (lambda t: Adapter.load("a.safetensors"), r"cannot be read.*written by Adapter\.save"),
    "a bundle that is none": (lambda t: import_bundle(t.folder / "notes.txt", t.folder / "x"), "is not a bundle"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_python_says_what_to_do(there, mistake):
    act, words = MISTAKES[mistake]
    with pytest.raises(KVPacketError, match=words) as raised:
        act(there)
    said = str(raised.value)
    assert not FOREIGN.search(said)
    assert said.endswith((".", "?"))
    assert len(said) < 600
    assert there.kb.verify().clean


COMMANDS = {
    "a knowledge base that is not there": (["ask", "{tmp}/kbb", "Why?"], 1, "no store at .*kbb.*Make one with `kvpacket add"),
    "no question": (["ask", "{kb}"], 2, "Missing argument 'question'"),
    "nothing to add": (["add", "{tmp}/new"], 2, "Missing argument 'PATH...'"),
    "a path that is not there": (["add", "{tmp}/new", "noets"], 1, "no file or folder noets"),
    "a command that is none": (["ad", "{kb}", "x"], 2, "Did you mean 'add'"),
    "an option that is none": (["ask", "{kb}", "Why?", "--top-k", "3"], 2, "No such option"),
    "a method that is none": (["ask", "{kb}", "Why?", "--method", "fast"], 2, "is not one of 'packet', 'full'"),
    "a document that is not there": (["rm", "{kb}", "batery"], 1, "no document 'batery'"),
    "a size that is none": (["cap", "{kb}", "20XB"], 1, "A size must be like 500MB"),
    "a folder of documents instead of a store": (["info", "{tmp}/docs"], 1, "no store at"),
    "a bundle that is not there": (["import", "{tmp}/a.kvpb", "{tmp}/new"], 1, "no bundle .*Make one with `kvpacket export`"),
    "a database that does not answer": (["ls", "postgresql://127.0.0.1:1/kb"], 1, "Check that the server runs|psycopg"),
    "a namespace of many words": (["--namespace", "Tenant A", "ls", "{kb}"], 1, "A namespace has 1 to 48 characters"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_mistake_on_the_command_line_is_one_line_and_an_exit_code(there, mistake, monkeypatch, capsys):
    arguments, code, words = COMMANDS[mistake]
    (there.folder / "docs").mkdir()
    given = [part.format(tmp=there.folder, kb=there.kb.folder) for part in arguments]
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "argv", ["kvpacket", *given])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr()
    assert stop.value.code == code
    assert re.search(words, said.err)
    assert "Traceback" not in said.err + said.out
    assert not (there.folder / "new" / "store.db").exists()


# -- what is no mistake, though one might fear it -------------------------------------------------------------


def test_one_path_needs_no_list(there):
    assert there.kb.add_paths(there.folder / "notes.txt").added == 1
    assert there.kb.add_paths(str(there.folder / "notes.txt")).unchanged == 1


def test_a_filter_that_no_document_passes_answers_without_documents(there):
    answer = there.rag.ask("Why?", filter={"lang": "en"})
    assert answer.sources == ()


def test_opening_a_store_twice_and_asking_from_several_threads_is_fine(there):
    with DocumentStore.open(there.kb.folder, model=there.model, embedder=HashEmbedder()) as again:
        expected = there.rag.ask("How long does the battery last?").text
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(RAG(one).ask, "How long does the battery last?") for one in (there.kb, again) * 4]
        assert {answer.result().text for answer in asked} == {expected}
