"""What notebooks show of answers, comparisons, prompts and stores: the figures of the thing itself, and no text as markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from kvpacket_rag.answering.answer import Timings, Usage
from kvpacket_rag.answering.comparison import Comparison
from kvpacket_rag.answering.conversation import Conversation, Turn
from kvpacket_rag.answering.generation import GenerationConfig
from kvpacket_rag.answering.prompt import Block
from kvpacket_rag.answering.rag import RAG
from kvpacket_rag.corpus.document import Document
from kvpacket_rag.display.html import milliseconds, progress_html
from kvpacket_rag.display.progress import ProgressBar, progress_bar
from kvpacket_rag.errors import InputError
from kvpacket_rag.events import Answered, BuildProgress
from kvpacket_rag.packets.adapter import Adapter
from tests.conftest import HANDBOOK, handbook, tiny_model

QUESTION = "How long does the battery last?"
SHORT = GenerationConfig(max_new_tokens=12)
HOSTILE = "<script>alert('1')</script> \"><img src=x onerror=alert(2)> & $1 and $2"
TAGS = {"div", "span", "strong", "ol", "li", "details", "summary", "del", "ins", "table", "caption", "tbody", "tr", "th", "td", "code", "progress"}  # fmt: skip
ATTRIBUTES = {"style", "title", "class", "role", "scope", "aria-label", "aria-hidden", "max", "value"}


class Page(HTMLParser):
    """Elements, attributes and texts, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, tag
        assert ATTRIBUTES.issuperset(dict(attrs)), attrs
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def bars(self) -> list[str | None]:
        return [attrs["aria-label"] for _, attrs in self.tags if attrs.get("role") == "img"]

    def widths(self) -> list[float]:
        styles = [attrs.get("style") or "" for _, attrs in self.tags]
        return [float(found[1]) for found in (re.search(r"width:([0-9.]+)%", style) for style in styles) if found]


@pytest.fixture
def rag(store):
    return RAG(store, k=3, config=SHORT)


@pytest.fixture
def exact(open_store):
    """One chunk behind the very prefix: packets and full prefill give one answer."""
    store = open_store("exact", first_anchor="opening")
    store.add(handbook())
    return RAG(store, k=1, config=SHORT)


# -- answers --------------------------------------------------------------------------------------------------


def test_an_answer_shows_its_text_its_sources_and_the_figures_it_has(rag):
    answer = rag.ask(QUESTION)
    page = Page(answer._repr_html_())
    usage, times = answer.usage, answer.timings
    assert answer.text in page.text
    for hit in answer.sources:
        assert hit.chunk.text in page.text
        assert f"{hit.chunk.document}, part {hit.chunk.ordinal + 1}, score {hit.score:.2f}" in page.text
    tokens, steps = page.bars()
    assert tokens == (
        f"Tokens of the prompt: {usage.packet_tokens} from packets, {usage.prefix_tokens} from the cached prefix, "
        f"{usage.computed_tokens} computed"
    )
    assert steps.startswith(f"First token after {milliseconds(times.first_token)}: ")
    for name in ("search", "load", "assemble", "question"):
        assert f"{name} {milliseconds(getattr(times, name))}" in steps
        assert f"{name} {milliseconds(getattr(times, name))}" in page.text, "in words too, not only for who hears it"
    assert sum(page.widths()) == pytest.approx(200, abs=0.1), "two bars"


def test_the_steps_of_an_answer_add_up_to_its_total(rag):
    times = rag.ask(QUESTION).timings
    assert [name for name, _ in times.steps] == ["search", "load", "assemble", "question", "generation"]
    assert sum(seconds for _, seconds in times.steps) == pytest.approx(times.total)
    assert Timings(search=2.0, total=1.0).steps[-1] == ("generation", 0.0)


def test_an_answer_with_full_prefill_says_so(rag):
    page = Page(rag.ask(QUESTION, method="full")._repr_html_())
    assert "With full prefill" in page.text
    assert page.bars()[0].startswith("Tokens of the prompt: 0 from packets, 0 from the cached prefix, ")


def test_what_was_built_missed_or_left_out_is_said(rag):
    answer = rag.ask(QUESTION)
    assert 'role="note"' not in answer._repr_html_()
    usage = replace(answer.usage, packets_built=2, missed=1, dropped=("a", "b", "c"))
    page = Page(replace(answer, usage=usage)._repr_html_())
    assert "2 packets were not stored and had to be built." in page.text
    assert "1 retrieved text is in no chunk of the store and had to be computed." in page.text
    assert "3 chunks were left out, since the model's window was full." in page.text


def test_an_answer_that_cost_nothing_can_be_shown(rag):
    page = Page(replace(rag.ask(QUESTION), sources=(), usage=Usage(), timings=Timings())._repr_html_())
    assert page.widths() == [0.0] * 8
    assert "Sources" not in page.text


def test_hostile_texts_are_shown_and_are_no_markup(open_store):
    store = open_store(chunk_tokens=len(HOSTILE))
    store.add([Document(HOSTILE, id=f"id {HOSTILE}", title=f"title {HOSTILE}")])
    rag = RAG(store, k=1, config=SHORT)
    answer = replace(rag.ask(HOSTILE), text=HOSTILE)
    page = Page(answer._repr_html_())  # which refuses tags and attributes that are not ours
    assert page.text.count(HOSTILE) == 4  # answer, title, id, passage
    compared = Comparison(HOSTILE, answer, replace(answer, text=f"{HOSTILE} or not"))
    assert Page(compared._repr_html_()).text.count(HOSTILE) >= 1 + 2 * 4
    assert HOSTILE in str(compared)
    blocks = rag.prompt(HOSTILE)
    assert sum(HOSTILE in block.text for block in blocks) == 2


def test_dollars_in_a_text_are_not_taken_for_mathematics(rag):
    opening = rag.ask(QUESTION)._repr_html_().split(">")[0]
    assert {"tex2jax_ignore", "mathjax_ignore"} <= set(re.search('class="(.*?)"', opening)[1].split())


def test_lines_of_a_text_stay_lines(rag):
    assert "one\n  two" in Page(replace(rag.ask(QUESTION), text="one\n  two")._repr_html_()).text


def test_a_reply_shows_the_chunks_it_took_from_packets(store):
    turn = Turn("user", (f"{HANDBOOK['price']}\n\nWhat does a lamp cost?",))
    reply = Conversation.over(store, SHORT).reply([turn])
    page = Page(reply._repr_html_())
    assert len(reply.chunks) >= 1
    for chunk in reply.chunks:
        assert f"price, part {chunk.ordinal + 1}" in page.text
        assert chunk.text in page.text
    assert f"{reply.usage.packet_tokens} from packets" in page.bars()[0]


# -- comparisons ----------------------------------------------------------------------------------------------


def test_one_chunk_behind_the_very_prefix_compares_as_the_same_answer(exact):
    compared = exact.compare(QUESTION)
    assert compared.same
    assert compared.packet.text == compared.full.text
    assert (compared.packet.method, compared.full.method) == ("packet", "full")
    assert compared.difference == (("both", " ".join(compared.full.text.split())),)
    assert compared.speedup == compared.full.timings.first_token / compared.packet.timings.first_token
    shown = str(compared)
    assert shown.startswith(
        f"{QUESTION}\nWith full prefill: {compared.full.text}\nFrom packets:      {compared.packet.text}\n"
    )
    assert f"{compared.speedup:.1f} times as fast; the same answer." in shown
    assert "[-" not in shown


def test_a_comparison_asks_with_full_prefill_first_then_from_packets_and_gives_what_ask_gives(open_store):
    asked = []
    store = open_store(hooks=[lambda event: asked.append(event.method) if isinstance(event, Answered) else None])
    store.add(handbook())
    rag = RAG(store, k=4, config=SHORT)
    options = {"k": 2, "history": [{"role": "user", "content": "Hello."}], "filter": {"part": ["care", "price"]}}
    compared = rag.compare("What does a lamp cost?", config=GenerationConfig(max_new_tokens=5), **options)
    assert asked == ["full", "packet"]
    for answer in (compared.full, compared.packet):
        again = rag.ask(
            "What does a lamp cost?", method=answer.method, config=GenerationConfig(max_new_tokens=5), **options
        )
        assert again.text == answer.text
        assert again.sources == answer.sources
        assert {hit.chunk.document for hit in answer.sources} <= {"care", "price"}
        assert answer.usage.answer_tokens <= 5


def test_a_comparison_says_which_packets_had_to_be_built(exact):
    assert "1 packet was not stored and had to be built." in str(exact.compare(QUESTION))
    assert "had to be built" not in str(exact.compare(QUESTION))


def test_words_that_only_one_answer_has_are_marked(rag):
    answer = rag.ask(QUESTION)
    full, packet = (
        replace(answer, text="It lasts nine days  in all.", method="full"),
        replace(answer, text="It lasts two weeks in all."),
    )
    compared = Comparison(QUESTION, packet, full)
    assert not compared.same
    assert compared.difference == (
        ("both", "It lasts"), ("full", "nine days"), ("packet", "two weeks"), ("both", "in all.")
    )  # fmt: skip
    assert str(compared).endswith("the answers differ.\nIt lasts [-nine days-] {+two weeks+} in all.")
    html = compared._repr_html_()
    assert '<del title="with full prefill only">nine days</del> <ins title="from packets only">two weeks</ins>' in html
    assert "It lasts nine days two weeks in all." in Page(html).text


def test_a_comparison_shows_both_answers_with_their_own_figures(rag):
    compared = rag.compare(QUESTION)
    page = Page(compared._repr_html_())
    full, packet = compared.full.usage, compared.packet.usage
    assert [label for label in page.bars() if "computed" in label] == [
        f"Tokens of the prompt: 0 from packets, 0 from the cached prefix, {full.computed_tokens} computed",
        f"Tokens of the prompt: {packet.packet_tokens} from packets, {packet.prefix_tokens} from the cached prefix, "
        f"{packet.computed_tokens} computed",
    ]
    assert compared.verdict in page.text


# -- prompts --------------------------------------------------------------------------------------------------


def test_the_pieces_of_a_prompt_are_those_of_its_answer(rag):
    answer, blocks = rag.ask(QUESTION), rag.prompt(QUESTION)
    assert [block.kind for block in blocks] == ["prefix", "packet", "packet", "packet", "question"]
    assert [block.chunk for block in blocks[1:-1]] == [hit.chunk for hit in answer.sources[::-1]]
    assert sum(block.tokens for block in blocks if block.kind == "packet") == answer.usage.packet_tokens
    assert (
        sum(block.tokens for block in blocks if block.reused) == answer.usage.packet_tokens + answer.usage.prefix_tokens
    )
    assert sum(block.tokens for block in blocks if not block.reused) == answer.usage.computed_tokens
    assert all(block.chunk.text in block.text for block in blocks[1:-1])
    assert QUESTION in blocks[-1].text
    assert rag.show_prompt(QUESTION) == "\n".join(
        f"[{b.kind}{f' {b.chunk.id} · {b.chunk.document}' if b.chunk else ''} · {b.tokens} tokens]\n{b.text}"
        for b in blocks
    )


def test_with_full_prefill_nothing_of_a_prompt_is_reused(rag):
    answer, blocks = rag.ask(QUESTION, method="full"), rag.prompt(QUESTION, method="full")
    assert [block.kind for block in blocks] == ["prefix", "text", "text", "text", "question"]
    assert not any(block.reused for block in blocks)
    assert sum(block.tokens for block in blocks) == answer.usage.computed_tokens
    assert [block.chunk for block in blocks[1:-1]] == [hit.chunk for hit in answer.sources[::-1]]
    assert [block.text for block in blocks] == [block.text for block in rag.prompt(QUESTION)]
    with pytest.raises(InputError, match="method"):
        rag.prompt(QUESTION, method="fast")


def test_a_prompt_begins_with_the_prefix_and_ends_with_the_question(rag):
    prefix, *packets, question = rag.prompt(QUESTION)
    assert (prefix.kind, question.kind, question.chunk) == ("prefix", "question", None)
    assert {block.kind for block in packets} == {"packet"}
    assert isinstance(prefix, Block)


# -- stores and models ----------------------------------------------------------------------------------------


def test_a_store_shows_what_it_holds(store):
    page, info = Page(store._repr_html_()), store.info()
    cells = dict(zip(*[iter(part for tag, part in _cells(store._repr_html_()))] * 2, strict=True))
    assert cells == {"namespace": "default", **dict(info.rows)}
    assert cells["documents"] == str(info.documents) == "4"
    assert cells["packets"] == f"{info.packets} of {info.packet_tokens} tokens"
    assert cells["model"] == "tiny-llama"
    assert store.location in page.text


def _cells(html: str) -> list[tuple[str, str]]:
    return re.findall(r"<(th|td)[^>]*>(.*?)</\1>", html)


def test_an_empty_store_and_one_with_a_limit_and_a_hostile_place_can_be_shown(open_store):
    store = open_store("a <b>&'store'")
    assert "<b>" not in store._repr_html_()
    assert Page(store._repr_html_()).text.count(store.location) == 1
    store.max_bytes = 2_500_000
    assert ("limit", "2.5 MB of packet files") in store.info().rows


def test_long_settings_are_cut_short(store):
    info = store.info()
    facts = {"settings": {"anchor_texts": ["one passage " * 50]}}
    (name, value), *_ = replace(info, facts=facts).rows
    assert name == "anchor texts"
    assert len(value) <= 80
    assert value.endswith(" …")


def test_a_model_says_what_it_is(llama):
    # 3 layers, keys and values of 2 heads of 16 numbers of 4 bytes
    assert repr(llama) == (
        "PacketModel('tiny-llama', 3 layers, float32 on cpu, 8192 positions, 0.8 KiB per token, no adapter)"
    )
    import torch

    adapted = tiny_model(adapter=Adapter.of({"bridge": torch.zeros(3, 64), "anchor": torch.zeros(5, 64)}))
    assert repr(adapted).endswith("adapter of bridge 3, anchor 5)")


# -- progress, and cells run again ----------------------------------------------------------------------------


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook would show of each output, in order."""
    import IPython.display

    shown: list[str] = []

    class Handle:
        def update(self, html):
            shown.append(html.data)

    def display(html, *, display_id):
        assert display_id is True
        shown.append(html.data)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr("kvpacket_rag.display.progress.err", Console(stderr=True, force_jupyter=True))
    return shown


def test_a_notebook_shows_how_far_adding_is(notebook, open_store):
    store = open_store()
    with progress_bar("Adding <b>") as bar:
        store.add(handbook(), progress=bar)
    assert 2 <= len(notebook) <= 10
    first, last = Page(notebook[0]), Page(notebook[-1])
    assert first.text.strip() == "Adding <b> 0"
    assert last.text.strip().startswith(f"Adding <b> 4 of 4 documents, {store.info().chunks} chunks encoded, ")
    assert [attrs["value"] for tag, attrs in last.tags if tag == "progress"] == ["4"]
    with progress_bar() as bar:
        store.verify(progress=bar)
    assert Page(notebook[-1]).text.strip() == f"{store.info().packets} of {store.info().packets}"


def test_a_notebook_shows_where_work_was_when_it_failed(notebook):
    def work():
        with progress_bar("Work") as bar:
            bar(3, 7)
            raise InputError("It failed.")

    with pytest.raises(InputError, match="It failed"):
        work()
    assert Page(notebook[-1]).text.strip() == "Work 3 of 7"


def test_a_bar_of_nothing_is_full_and_one_without_an_end_has_no_value():
    assert 'max="1" value="1"' in progress_html("", 0, 0)
    assert "value" not in progress_html("", 5, None)


def test_a_terminal_shows_the_same_on_its_error_stream(open_store, monkeypatch):
    console = Console(stderr=True, force_terminal=True, width=200, record=True, highlight=False)
    monkeypatch.setattr("kvpacket_rag.display.terminal.err", console)
    store = open_store()
    with progress_bar("Adding") as bar:
        store.add(handbook(), progress=bar)
    text = console.export_text()
    assert "Adding" in text
    assert f"4 documents, {store.info().chunks} chunks encoded, " in text


def test_a_bar_takes_what_builds_and_what_counts_tell():
    drawn = []
    bar = ProgressBar(lambda *state: drawn.append(state))
    bar(BuildProgress(documents=2, total=None, chunks=5, tokens=600, seconds=2.0))
    bar(BuildProgress(documents=2, total=2, chunks=0, tokens=0, seconds=0.0))
    bar(3, 9)
    assert drawn == [(2, None, "documents, 5 chunks encoded, 300 tokens/s"), (2, 2, "documents"), (3, 9, "")]


def test_a_cell_that_opens_adds_and_asks_may_be_run_again(open_store):
    def cell():
        store = open_store("again", first_anchor="opening")
        with progress_bar("Adding") as bar:
            report = store.add(handbook(), progress=bar)
        return report, RAG(store, config=SHORT).ask(QUESTION), store

    first, answered, opened = cell()
    again, repeated, reopened = cell()
    assert (first.added, first.unchanged) == (4, 0)
    assert (again.added, again.updated, again.unchanged, again.packets_built) == (0, 0, 4, 0)
    assert repeated.text == answered.text
    assert repeated.sources == answered.sources
    assert opened.info() == reopened.info()
    assert opened.verify().clean
    assert RAG(opened, config=SHORT).ask(QUESTION).text == answered.text, "the store of the first run still answers"
