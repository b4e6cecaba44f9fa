"""The server, spoken to over the network by the clients people use: openai, langchain-openai, httpx."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvpacket_rag import RAG, Document, GenerationConfig, Metrics
from kvpacket_rag.events import Answered
from kvpacket_rag.store.document_store import DocumentStore
from tests.conftest import HashEmbedder, handbook
from tests.support.serving import serving

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
fastapi = pytest.importorskip("fastapi", reason="the extra serve is not installed")

QUESTION = "How long does the battery last?"
SHORT = GenerationConfig(max_new_tokens=12)


@pytest.fixture
def rag(store):
    return RAG(store, k=2, config=SHORT)


@pytest.fixture
def address(rag):
    with serving(rag) as url:
        yield url


def client(address, key="none", **options):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=60, **options)


def chat(address, question=QUESTION, **options):
    return client(address).chat.completions.create(
        model="tiny-llama", messages=[{"role": "user", "content": question}], **options
    )


def test_the_openai_client_gets_the_answer_that_ask_gives_with_its_sources_and_cost(address, rag):
    rag.ask(QUESTION)  # keeps the states of the prefix, which the next one finds
    expected = rag.ask(QUESTION)
    answer = chat(address)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason in ("stop", "length")
    more = answer.kvpacket
    assert [source["chunk"] for source in more["sources"]] == [hit.chunk.id for hit in expected.sources]
    assert more["usage"]["packet_tokens"] == expected.usage.packet_tokens > 0
    assert more["timings"]["first_token"] > 0
    usage = answer.usage
    assert usage.prompt_tokens_details.cached_tokens == expected.usage.packet_tokens + expected.usage.prefix_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_says_its_sources_first_its_text_in_pieces_and_its_cost_last(address, rag):
    pieces = list(chat(address, stream=True, stream_options={"include_usage": True}))
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[0].kvpacket["sources"]
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text.strip() == rag.ask(QUESTION).text
    assert sum(bool(piece.choices and piece.choices[0].delta.content) for piece in pieces) > 1
    assert pieces[-2].choices[0].finish_reason in ("stop", "length")
    assert pieces[-2].kvpacket["usage"]["answer_tokens"] > 0
    assert pieces[-1].usage.prompt_tokens > 0
    assert pieces[-1].choices == []


def test_a_request_may_ask_for_full_prefill_for_other_chunks_and_for_documents_of_some_metadata(address, rag):
    full = chat(address, extra_body={"kvpacket": {"method": "full", "k": 1, "filter": {"part": "price"}}})
    expected = rag.ask(QUESTION, method="full", k=1, filter={"part": "price"})
    assert full.choices[0].message.content == expected.text
    assert full.kvpacket["method"] == "full"
    assert full.kvpacket["usage"]["packet_tokens"] == 0
    assert [source["document"] for source in full.kvpacket["sources"]] == ["price"]


def test_filters_have_operators_and_what_finds_nothing_is_said_without_the_model(address):
    found = chat(address, extra_body={"kvpacket": {"k": 9, "filter": {"part": {"$in": ["price", "care"]}}}})
    assert {source["document"] for source in found.kvpacket["sources"]} == {"price", "care"}
    for options in ({"filter": {"part": "nothing"}}, {"min_score": 1.0}):
        nothing = chat(address, extra_body={"kvpacket": options})
        assert nothing.choices[0].message.content == "No document fits the question's filter."
        assert nothing.choices[0].finish_reason == "stop"
        assert nothing.usage.completion_tokens == 0
        assert (nothing.kvpacket["found"], nothing.kvpacket["sources"]) == (False, [])
        pieces = list(chat(address, stream=True, extra_body={"kvpacket": options}))
        assert "".join(p.choices[0].delta.content or "" for p in pieces) == "No document fits the question's filter."
        assert pieces[-1].choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match=r"no filter operator '\$foo'. The operators are"):
        chat(address, extra_body={"kvpacket": {"filter": {"part": {"$foo": 1}}}})
    body = {"messages": [{"role": "user", "content": QUESTION}], "kvpacket": {"filter": {"part": "nothing"}}}
    assert httpx.post(f"{address}/v1/prompt", json=body).json()["data"] == []


def test_earlier_turns_and_the_system_text_reach_the_model(address, rag):
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Which colours are there?"},
        {"role": "assistant", "content": "Green and ochre."},
        {"role": "user", "content": [{"type": "text", "text": "And the"}, {"type": "text", "text": " price?"}]},
    ]
    body = {"messages": talk, "kvpacket": {"k": 1}}
    blocks = httpx.post(f"{address}/v1/prompt", json=body).json()["data"]
    prompt = "".join(block["text"] for block in blocks)
    for text in ("Be brief.", "Which colours are there?", "Green and ochre.", "And the price?"):
        assert text in prompt
    assert [block["kind"] for block in blocks] == ["prefix", "packet", "question"]
    assert [block["reused"] for block in blocks] == [True, True, False]
    answer = client(address).chat.completions.create(model="tiny-llama", messages=talk)
    assert answer.usage.prompt_tokens > 0


def test_settings_of_a_request_are_those_of_openai(address):
    assert chat(address, max_tokens=3).usage.completion_tokens <= 3
    assert chat(address, max_completion_tokens=2).usage.completion_tokens <= 2
    sampled = [chat(address, temperature=1.5, seed=7, top_p=0.9).choices[0].message.content for _ in range(2)]
    assert sampled[0] == sampled[1]
    whole = chat(address).choices[0].message.content
    cut = chat(address, stop=[whole[3]]).choices[0].message.content
    assert whole[3] not in cut
    assert chat(address, user="somebody", n=1, frequency_penalty=0).choices


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "does not support tools"),
        ({"n": 3}, "n: Input should be 1"),
        ({"temperature": -1}, "temperature must be 0 or more"),
        ({"max_tokens": -5}, "max_new_tokens must be at least 1"),
        ({"response_format": {"type": "json_object"}}, "does not support response_format"),
        ({"extra_body": {"kvpacket": {"method": "fast"}}}, "kvpacket.method"),
        ({"extra_body": {"kvpacket": {"chunks": 3}}}, "kvpacket.chunks"),
        ({"extra_body": {"kvpacket": {"k": 0}}}, "kvpacket.k"),
        ({"question": "   "}, "question is empty"),
        ({"question": "word " * 3000}, "does not fit"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_answered_is_said_in_one_sentence_before_anything_is_sent(address, options, words, stream):
    with pytest.raises(openai.BadRequestError, match=words):
        chat(address, stream=stream, **options)


def test_another_model_a_wrong_order_of_turns_and_no_json_are_refused(address):
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt-4' here"):
        client(address).chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.NotFoundError):
        client(address).models.retrieve("gpt-4")
    last = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    with pytest.raises(openai.BadRequestError, match="last message must be the user's"):
        client(address).chat.completions.create(model="tiny-llama", messages=last)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(openai.BadRequestError, match=r"messages\.0\.content"):
        client(address).chat.completions.create(model="tiny-llama", messages=image)
    broken = httpx.post(f"{address}/v1/chat/completions", content="{", headers={"content-type": "application/json"})
    assert broken.status_code == 400
    assert "cannot be read" in broken.json()["error"]["message"]
    assert httpx.get(f"{address}/nowhere").json()["error"]["code"] == "not_found"


def test_the_models_are_the_one_there_is(address):
    assert [model.id for model in client(address).models.list()] == ["tiny-llama"]
    assert client(address).models.retrieve("tiny-llama").id == "tiny-llama"


def test_langchain_openai_answers_and_streams(address, rag):
    langchain_openai = pytest.importorskip("langchain_openai")
    model = langchain_openai.ChatOpenAI(
        base_url=f"{address}/v1", api_key="none", model="tiny-llama", max_retries=0, temperature=0
    )
    expected = rag.ask(QUESTION).text
    assert model.invoke(QUESTION).content == expected
    assert "".join(str(piece.content) for piece in model.stream(QUESTION)).strip() == expected


def test_ten_clients_at_once_get_the_answers_that_one_gets(address, rag):
    questions = [f"{QUESTION} Say it {number} times." for number in range(10)]
    expected = [rag.ask(question).text for question in questions]

    def one(numbered):
        number, question = numbered
        if number % 2:
            return chat(address, question).choices[0].message.content
        pieces = chat(address, question, stream=True)
        return "".join(piece.choices[0].delta.content or "" for piece in pieces).strip()

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(one, enumerate(questions))) == expected


def test_more_clients_than_may_wait_are_turned_away_and_the_others_answered(rag):
    from kvpacket_rag.serve.limits import Limits

    with serving(rag, limits=Limits(concurrent=1, waiting=1)) as address:

        def one(_):
            try:
                return chat(address, max_tokens=200).choices[0].finish_reason
            except openai.RateLimitError as error:
                return f"try again after {error.response.headers['retry-after']}"

        with ThreadPoolExecutor(8) as pool:
            ends = list(pool.map(one, range(8)))
        assert "try again after 1" in ends
        assert set(ends) & {"stop", "length"}
        assert chat(address).choices  # all places are free again


def test_a_client_that_hangs_up_stops_the_work(open_store):
    ended = []
    store = open_store(hooks=[lambda event: ended.append(event) if isinstance(event, Answered) else None])
    store.add(handbook())
    # A tiny model would stop by itself: ban nothing, but ask for far more than is read.
    rag = RAG(store, k=2, config=GenerationConfig(max_new_tokens=4000, temperature=5.0, seed=3))
    with serving(rag) as address:
        body = {"messages": [{"role": "user", "content": QUESTION}], "stream": True}
        for _ in range(5):
            with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as response:
                lines = response.iter_lines()
                for _ in range(6):
                    next(lines, None)
        deadline = time.monotonic() + 30
        while len(ended) < 5:
            assert time.monotonic() < deadline, "a given up answer goes on"
            time.sleep(0.05)
        assert all(event.usage["answer_tokens"] < 4000 for event in ended)
        assert chat(address, max_tokens=2).choices


# -- documents ----------------------------------------------------------------------------------------------


def ids(address):
    return [document["id"] for document in httpx.get(f"{address}/v1/documents").json()["data"]]


def test_documents_are_added_listed_answered_from_and_removed(address):
    new = {"id": "a b/c?.md", "text": "The cellar is damp in March.", "title": "Cellar", "metadata": {"part": "cellar"}}
    report = httpx.post(f"{address}/v1/documents", json={"documents": [new]}, timeout=60).json()
    assert (report["added"], report["packets_built"]) == (1, 1)
    assert ids(address) == ["a b/c?.md", "battery", "care", "colour", "price"]
    answer = chat(address, "Is the cellar damp in March?", extra_body={"kvpacket": {"k": 1}})
    assert answer.kvpacket["sources"][0]["document"] == "a b/c?.md"
    assert answer.kvpacket["usage"]["packets_built"] == 0
    gone = httpx.delete(f"{address}/v1/documents/a%20b/c%3F.md").json()
    assert gone == {"id": "a b/c?.md", "object": "document", "deleted": True}
    assert httpx.delete(f"{address}/v1/documents/a%20b/c%3F.md").status_code == 404
    assert httpx.get(f"{address}/v1/store").json()["documents"] == 4


@pytest.mark.parametrize(
    "document",
    [
        {"text": ""},
        {"title": "no text"},
        {"text": "x", "whole": True},
        {"text": "a\ud800"},
        {"text": "x", "metadata": []},
    ],
    ids=["empty", "without text", "unknown field", "half a character", "metadata of a wrong kind"],
)
def test_a_document_that_cannot_be_added_changes_nothing(address, document):
    body = json.dumps({"documents": [{"text": "good"}, document]})
    refused = httpx.post(f"{address}/v1/documents", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"]
    assert len(ids(address)) == 4


def upload(address, *named, **options):
    files = [("file", (name, content)) for name, content in named]
    return httpx.post(f"{address}/v1/files", files=files, timeout=60, **options)


def test_files_are_read_under_their_names_and_replaced_by_files_of_the_same_name(address):
    rows = '{"id": "1", "text": "One lamp is red."}\n{"id": "2", "text": "Two lamps are blue."}\n'
    report = upload(address, ("notes.md", "# Cellar\n\nIt is damp."), ("rows.jsonl", rows)).json()
    assert report["added"] == 3
    assert set(ids(address)) >= {"notes.md", "rows.jsonl#1", "rows.jsonl#2"}
    titles = {d["id"]: d["title"] for d in httpx.get(f"{address}/v1/documents").json()["data"]}
    assert titles["notes.md"] == "Cellar"
    assert titles["rows.jsonl#1"] == "rows"
    again = upload(address, ("notes.md", "# Cellar\n\nIt is dry."), ("rows.jsonl", rows.splitlines()[0])).json()
    assert (again["updated"], again["unchanged"]) == (1, 1)
    assert "rows.jsonl#2" not in ids(address)


def test_a_file_that_cannot_be_read_says_why_and_its_name_leads_nowhere(address, tmp_path):
    for name, content, words in [
        ("picture.png", b"\x89PNG", "of no known kind"),
        ("notes.txt", b"", "notes.txt: the file is empty"),
        ("notes.txt", b"a\x00b", "binary"),
        ("noname", b"text", "of no known kind"),
        ("paper.pdf", b"%PDF-1.4 broken", "PDF"),
    ]:
        refused = upload(address, (name, content))
        assert refused.status_code == 400
        assert words in refused.json()["error"]["message"]
        assert str(tmp_path.parent) not in refused.json()["error"]["message"]
    assert upload(address, ("../../etc/cellar.txt", "It is damp.")).json()["added"] == 1
    assert "cellar.txt" in ids(address)
    assert len(ids(address)) == 5


def test_adding_tells_how_far_it_is(address):
    body = {"documents": [{"text": f"Document {number} is here."} for number in range(5)]}
    with httpx.stream("POST", f"{address}/v1/documents?stream=true", json=body, timeout=60) as response:
        states = [json.loads(line[6:]) for line in response.iter_lines() if line]
    assert states[-1]["object"] == "documents.added"
    assert states[-1]["added"] == 5
    told = [state for state in states if state["object"] == "documents.progress"]
    assert told[-1]["documents"] == told[-1]["total"] == 5


def test_a_bundle_is_served_and_not_changed(store, tmp_path, llama):
    store.export(tmp_path / "kb.kvpb")
    with (
        DocumentStore.open(tmp_path / "kb.kvpb", read_only=True, model=llama, embedder=HashEmbedder()) as bundle,
        serving(RAG(bundle, k=2, config=SHORT)) as address,
    ):
        assert chat(address).choices[0].message.content == RAG(store, k=2, config=SHORT).ask(QUESTION).text
        refused = httpx.post(f"{address}/v1/documents", json={"documents": [{"text": "new"}]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")
        assert httpx.delete(f"{address}/v1/documents/care").status_code == 403


def test_an_empty_store_says_that_documents_are_missing(open_store):
    with serving(RAG(open_store())) as address, pytest.raises(openai.NotFoundError, match="has no documents"):
        chat(address)


# -- strangers ----------------------------------------------------------------------------------------------


def test_without_the_key_only_the_page_is_there(rag):
    with serving(rag, api_key="s3cret") as address:
        for path in ("/", "/page.js", "/page.css", "/health"):
            assert httpx.get(f"{address}{path}").status_code == 200
        for path in ("/v1/models", "/v1/documents", "/v1/store", "/metrics", "/openapi.json"):
            assert httpx.get(f"{address}{path}").status_code == 401
        with pytest.raises(openai.AuthenticationError, match="key is missing or wrong"):
            client(address, "wrong").models.list()
        assert [model.id for model in client(address, "s3cret").models.list()] == ["tiny-llama"]


def test_pages_of_other_sites_are_kept_out_unless_they_are_named(rag):
    with serving(rag, hosts=("127.0.0.1", "localhost"), origins=("http://friend.example",)) as address:
        from_elsewhere = httpx.get(f"{address}/v1/documents", headers={"origin": "http://evil.example"})
        assert from_elsewhere.status_code == 403
        renamed = httpx.get(f"{address}/v1/documents", headers={"host": "evil.example"})
        assert renamed.status_code == 403
        for broken in ({"host": "["}, {"origin": "null"}, {"origin": "http://["}):
            assert httpx.get(f"{address}/v1/documents", headers=broken).status_code == 403
        friend = httpx.get(f"{address}/v1/documents", headers={"origin": "http://friend.example"})
        assert friend.headers["access-control-allow-origin"] == "http://friend.example"
        may = httpx.options(
            f"{address}/v1/documents",
            headers={"origin": "http://friend.example", "access-control-request-method": "POST"},
        )
        assert may.status_code == 200
        assert httpx.get(f"{address}/v1/documents", headers={"origin": address}).status_code == 200


def test_requests_that_are_too_long_are_turned_away_whether_they_say_so_or_not(rag):
    from kvpacket_rag.serve.limits import Limits

    body = json.dumps({"documents": [{"text": "long " * 4000}]}).encode()
    kind = {"content-type": "application/json"}
    with serving(rag, limits=Limits(body_bytes=10_000)) as address:
        said = httpx.post(f"{address}/v1/documents", content=body, headers=kind)
        unsaid = httpx.post(f"{address}/v1/documents", content=iter([body[:5000], body[5000:]]), headers=kind)
        uploaded = upload(address, ("long.txt", body))
        for refused in (said, unsaid, uploaded):
            assert refused.status_code == 413
            assert "longer than 10,000 bytes" in refused.json()["error"]["message"]
        assert len(ids(address)) == 4


# -- looking after it ---------------------------------------------------------------------------------------


def test_metrics_count_what_was_asked(open_store):
    prometheus = pytest.importorskip("prometheus_client")
    metrics = Metrics(prometheus.CollectorRegistry())
    store = open_store(hooks=[metrics])
    store.add(handbook())
    with serving(RAG(store, k=2, config=SHORT), metrics=metrics) as address:
        chat(address)
        text = httpx.get(f"{address}/metrics").text
    assert 'kvpacket_step_seconds_count{method="packet",step="first_token"} 1.0' in text
    assert 'kvpacket_documents_total{change="added"} 4.0' in text


def test_without_the_hook_there_are_no_metrics(address):
    assert httpx.get(f"{address}/metrics").status_code == 404


def test_a_server_that_stops_lets_answers_that_are_being_written_end(rag):
    found = []
    with serving(rag) as address:
        asking = threading.Thread(target=lambda: found.append(chat(address, max_tokens=60)))
        asking.start()
        time.sleep(0.3)
    asking.join(30)
    assert found[0].choices[0].finish_reason in ("stop", "length")


def test_documents_may_come_and_go_while_questions_are_answered(address, rag):
    stop = threading.Event()
    faults = []

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            added = httpx.post(
                f"{address}/v1/documents", json={"documents": [{"id": "x", "text": f"Lamp {number}."}]}, timeout=60
            )
            removed = httpx.delete(f"{address}/v1/documents/x", timeout=60)
            faults.extend(r.text for r in (added, removed) if r.status_code != 200)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(5):
            assert chat(address).choices
    finally:
        stop.set()
        changing.join(60)
    assert faults == []


def test_many_documents_in_one_request_are_one_request(address):
    many = {"documents": [{"id": str(number), "text": f"Lamp number {number} is new."} for number in range(40)]}
    assert httpx.post(f"{address}/v1/documents", json=many, timeout=60).json()["added"] == 40


def test_a_document_added_by_another_process_is_seen(address, store):
    store.add([Document("The attic is dry in June.", id="attic")])
    assert "attic" in ids(address)
