"""The page of `kvpacket serve` in a real browser, driven as a person would: typing, clicking, dropping a file."""

from __future__ import annotations

import shutil

import pytest

from kvpacket_rag import RAG, Document, GenerationConfig
from tests.conftest import handbook
from tests.support.serving import serving

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian: apt-get install chromium)")

QUESTION = "How long does the battery last?"
HOSTILE = "<img src=x onerror=\"document.title='broken in'\"> & <script>document.title='broken in'</script>"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def rag(store):
    return RAG(store, k=2, config=GenerationConfig(max_new_tokens=12))


@pytest.fixture
def address(rag):
    with serving(rag) as url:
        yield url


@pytest.fixture
def page(browser, address):
    with opened(browser, address) as page:
        yield page


class opened:  # noqa: N801  a context manager
    """A page that may complain of nothing in its console."""

    def __init__(self, browser, address, **options):
        self.page = browser.new_page(**options)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        self.page.set_default_timeout(20_000)
        self.page.goto(address)

    def __enter__(self):
        return self.page

    def __exit__(self, kind, *_):
        self.page.close()
        # The browser itself notes statuses that are expected here.
        faults = [fault for fault in self.faults if "Failed to load resource" not in fault]
        assert kind is not None or faults == []


def ready(page):
    page.wait_for_function("() => document.getElementById('about').textContent.includes('packets')")


def ask(page, question=QUESTION):
    page.fill("#question", question)
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('verdict').textContent !== ''")


def test_both_answers_stream_side_by_side_with_their_times_sources_and_prompt(page, rag):
    rag.ask(QUESTION)  # keeps the states of the prefix
    ready(page)
    assert "tiny-llama · 4 documents" in page.inner_text("#about")
    ask(page)
    for method in ("packet", "full"):
        expected = rag.ask(QUESTION, k=4, method=method)
        assert page.text_content(f"#{method} .answer").strip() == expected.text
        assert page.inner_text(f"#{method} .first").endswith(("ms", "s"))
        assert f"{expected.usage.computed_tokens} computed" in page.inner_text(f"#{method} .cost")
    assert "0 prompt tokens reused" in page.inner_text("#full .cost")
    verdict = page.inner_text("#verdict")
    assert verdict.endswith(("the answers are the same.", "the answers differ."))
    same = page.text_content("#packet .answer") == page.text_content("#full .answer")
    assert ("the answers are the same" in verdict) == same
    hits = rag.ask(QUESTION, k=4).sources
    assert page.locator("#sources > li").count() == len(hits)
    page.locator("#sources summary").first.click()
    assert page.locator("#sources p").first.inner_text().strip() == hits[0].chunk.text.strip()
    kinds = page.locator("#prompt summary").all_inner_texts()
    assert len(kinds) == len(hits) + 2
    assert kinds[0].startswith("Prefix")
    assert kinds[0].endswith("reused")
    assert kinds[-1].startswith("Question")
    assert kinds[-1].endswith("computed")
    assert page.locator("#prompt .reused").count() == len(hits) + 1


def test_text_appears_while_it_is_written(browser, store):
    rag = RAG(store, k=2, config=GenerationConfig(max_new_tokens=400, temperature=3.0, seed=5))
    with serving(rag) as address, opened(browser, address) as page:
        ready(page)
        page.evaluate(
            "window.lengths = new Set(); new MutationObserver(() => lengths.add(document.querySelector('#packet .answer')"
            ".textContent.length)).observe(document.querySelector('#packet .answer'), {childList: true, characterData: true})"
        )
        page.uncheck("#compare")
        page.fill("#question", QUESTION)
        page.click("#go")
        page.wait_for_function("() => document.querySelector('#packet .first')?.textContent.match(/[0-9]/)")
        assert page.evaluate("lengths.size") > 1
        assert page.is_hidden("#full")


def test_escape_stops_an_answer_and_the_next_question_is_answered(browser, store):
    rag = RAG(store, k=2, config=GenerationConfig(max_new_tokens=3000, temperature=3.0, seed=3))
    with serving(rag) as address, opened(browser, address) as page:
        ready(page)
        page.fill("#question", QUESTION)
        page.click("#go")
        page.keyboard.press("Escape")
        page.wait_for_function("() => !document.getElementById('go').disabled")
        assert page.is_hidden("#stop")
        assert page.is_hidden("#problem")


def test_a_dropped_file_becomes_packets_and_is_answered_from_and_removed(page):
    ready(page)
    page.set_input_files(
        "#files", {"name": "cellar.md", "mimeType": "text/markdown", "buffer": b"# Cellar\n\nIt is damp."}
    )
    page.wait_for_function("() => document.getElementById('added').textContent.includes('1 added')")
    assert "1 packets of" in page.inner_text("#added")
    page.wait_for_function("() => document.getElementById('about').textContent.includes('5 documents')")
    dropped = (
        "const data = new DataTransfer(); data.items.add(new File(['The attic is dry.'], 'attic.txt'));"
        "document.getElementById('drop').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}))"
    )
    page.evaluate(dropped)
    page.wait_for_function("() => document.getElementById('about').textContent.includes('6 documents')")
    page.fill("#k", "1")
    ask(page, "Is the cellar damp?")
    assert "Cellar" in page.inner_text("#sources")
    page.click("button[aria-label='Remove cellar.md']")
    page.wait_for_function("() => document.getElementById('about').textContent.includes('5 documents')")
    assert "cellar.md" not in page.inner_text("#documents")


def test_a_file_of_no_known_kind_and_a_question_that_does_not_fit_are_said(page):
    ready(page)
    page.set_input_files("#files", {"name": "picture.png", "mimeType": "image/png", "buffer": b"\x89PNG"})
    page.wait_for_function("() => !document.getElementById('problem').hidden")
    assert "of no known kind" in page.inner_text("#problem")
    page.fill("#question", "word " * 3000)
    page.click("#go")
    page.wait_for_function("() => document.getElementById('problem').textContent.includes('fit')")
    assert page.is_enabled("#go")
    ask(page)  # and all is well afterwards
    assert page.is_hidden("#problem")


def test_nothing_in_a_document_becomes_markup(browser, store, rag):
    store.add([Document(f"Alarm {HOSTILE}", id=f"alarm/{HOSTILE}", title=HOSTILE)])
    with serving(rag) as address, opened(browser, address) as page:
        ready(page)
        page.fill("#k", "5")
        ask(page, f"Alarm {HOSTILE}")
        for details in page.locator("details summary").all():
            details.click()
        assert page.locator("main img, main script").count() == 0
        assert page.title() == "kvpacket-rag"
        assert HOSTILE in page.text_content("#sources")
        page.locator("#documents li", has_text="alarm").get_by_role("button").click()
        page.wait_for_function("() => document.getElementById('about').textContent.includes('4 documents')")


def test_the_key_is_asked_for_and_kept_for_the_session(browser, rag):
    with serving(rag, api_key="s3cret") as address, opened(browser, address) as page:
        page.wait_for_selector("#unlock:not([hidden])")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.getElementById('problem').textContent.includes('wrong')")
        page.fill("#key", "s3cret")
        page.keyboard.press("Enter")
        ready(page)
        assert page.is_hidden("#unlock")
        ask(page)
        page.reload()
        ready(page)


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_is_cut_off_on_a_phone(browser, address, width):
    with opened(browser, address, viewport={"width": width, "height": 800}) as page:
        ready(page)
        ask(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        side_by_side = page.evaluate(
            "document.getElementById('packet').getBoundingClientRect().top === document.getElementById('full').getBoundingClientRect().top"
        )
        assert side_by_side == (width > 640)


@pytest.mark.parametrize("family", ["sans-serif", "serif", "monospace"])
@pytest.mark.parametrize("size", [13, 20, 32])
def test_nothing_is_cut_off_whatever_the_font(browser, store, rag, family, size):
    store.add([Document("The cellar is dry.", id="a/" + "very-long-name-" * 12, title="T" * 200)])
    with serving(rag) as address, opened(browser, address, viewport={"width": 320, "height": 800}) as page:
        ready(page)
        page.evaluate("document.querySelectorAll('[hidden]').forEach((part) => { part.hidden = false })")
        sized = (
            "(font) => document.querySelectorAll('body, input, button').forEach((part) => { part.style.font = font })"
        )
        page.evaluate(sized, f"{size}px {family}")
        ask(page)
        wide = "[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > 320).map((e) => e.outerHTML)"
        assert page.evaluate(wide) == []


def test_all_can_be_done_from_the_keyboard_and_everything_has_a_name(page):
    ready(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the question"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    seen = []
    for _ in range(12):
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')"))
        page.keyboard.press("Tab")
    assert {"k", "compare", "go", "files", "Remove battery"} <= set(seen)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, textarea, button, progress')].filter(e => !e.labels?.length && "
        "!e.textContent.trim() && !e.getAttribute('aria-label')).map(e => e.outerHTML)"
    )
    assert unnamed == []


def test_a_server_that_is_gone_is_said(browser, rag):
    with serving(rag) as address:
        window = opened(browser, address)
        ready(window.page)
    with window as page:
        page.fill("#question", QUESTION)
        page.click("#go")
        page.wait_for_function("() => document.getElementById('problem').textContent.includes('does not answer')")


def test_an_empty_store_says_what_to_do_on_the_page(browser, open_store):
    with serving(RAG(open_store())) as address, opened(browser, address) as page:
        ready(page)
        page.fill("#question", QUESTION)
        page.click("#go")
        page.wait_for_function("() => document.getElementById('problem').textContent.includes('no documents')")
        page.set_input_files(
            "#files", {"name": "a.txt", "mimeType": "text/plain", "buffer": handbook()[0].text.encode()}
        )
        page.wait_for_function("() => document.getElementById('added').textContent.includes('1 added')")
        ask(page)
