"""Files become documents, or say why they cannot."""

from __future__ import annotations

import json

import pytest

from kvpacket_rag.corpus.document import Document
from kvpacket_rag.corpus.readers import find_files, read_file
from kvpacket_rag.errors import DocumentError, MissingDependencyError
from tests.conftest import handbook


def read(path):
    (file,) = find_files([path])
    return read_file(file)


def write(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def make_pdf(path, text):
    from fpdf import FPDF

    pdf = FPDF()
    pdf.set_title("A title")
    pdf.add_page()
    if text:
        pdf.set_font("helvetica", size=12)
        pdf.multi_cell(0, 8, text)
    pdf.output(str(path))


def test_text_and_markdown(tmp_path):
    (plain,) = read(write(tmp_path, "a.txt", "one\r\ntwo\n"))
    assert (plain.text, plain.id, plain.title, plain.markdown) == ("one\ntwo", "a.txt", "a", False)
    (marked,) = read(write(tmp_path, "b.md", "\n# The title\n\ntext"))
    assert (marked.title, marked.markdown) == ("The title", True)


def test_utf_8_with_and_without_mark_and_utf_16(tmp_path):
    for number, encoding in enumerate(("utf-8", "utf-8-sig", "utf-16")):
        (document,) = read(write(tmp_path, f"{number}.txt", "grün 漢字".encode(encoding)))
        assert document.text == "grün 漢字"


def test_html_is_read_as_a_person_would(tmp_path):
    page = (
        "<html><head><title>The page</title><script>var hidden = 1</script><style>p{}</style></head><body><nav>menu</nav>"
        "<h1>Heading</h1><p>One <b>bold</b>\n word.</p><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>"
        "<ul><li>first</li><li>second</li></ul></body></html>"
    )
    (document,) = read(write(tmp_path, "p.html", page))
    assert document.title == "The page"
    assert document.text.split("\n\n")[:2] == ["Heading", "One bold word."]
    assert "a | b\n" in document.text
    assert "1 | 2" in document.text
    assert "first\n" in document.text
    assert not any(word in document.text for word in ("hidden", "menu", "p{}"))


def test_pdf_and_word(tmp_path):
    make_pdf(tmp_path / "a.pdf", "The lamp lasts nine days.")
    (pdf,) = read(tmp_path / "a.pdf")
    assert "nine days" in pdf.text
    assert pdf.title == "A title"
    import docx

    word = docx.Document()
    word.add_paragraph("The lamp is green.")
    table = word.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "price", "31"
    word.save(str(tmp_path / "b.docx"))
    (document,) = read(tmp_path / "b.docx")
    assert document.text == "The lamp is green.\n\nprice | 31"


def test_json_lines_hold_a_document_each(tmp_path):
    rows = [{"id": "x", "title": "T", "text": "one", "lang": "en"}, {"content": "two", "metadata": {"n": 1}}]
    one, two = read(write(tmp_path, "r.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"))
    assert (one.id, one.title, one.metadata) == ("r.jsonl#x", "T", {"lang": "en"})
    assert (two.id, two.text, two.metadata) == ("r.jsonl#2", "two", {"n": 1})
    (single,) = read(write(tmp_path, "s.json", json.dumps(rows[0])))
    assert single.text == "one"
    assert len(read(write(tmp_path, "l.json", json.dumps(rows)))) == 2


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"", "empty"),
        ("b.txt", b" \n ", "empty"),
        ("c.txt", b"\x00\x01\x02" * 50, "binary"),
        ("d.txt", "grün".encode("latin-1"), "not UTF-8 .*0xfc"),
        ("e.json", b"[" * 100_000, "not JSON"),
        ("e.jsonl", b'{"id": 1, "text": "x"}\n{"id": 1, "text": "y"}', "several documents with the id"),
        ("f.json", b'{"text": "half \\ud835"}', "half character"),
        ("f.html", b"<html><body><script>x</script></body></html>", "no text"),
        ("g.pdf", b"this is no pdf", "damaged"),
        ("h.docx", b"this is no docx", "damaged"),
        ("i.json", b"{", "not JSON"),
        ("j.jsonl", b'{"text": "x"}\n{', "line 2 is not JSON"),
        ("k.jsonl", b'{"title": "x"}', "no text; expected one of the keys text"),
        ("l.json", b"[1]", "item 1 is not an object"),
        ("m.json", b"[]", "no text"),
        ("n.json", b'{"text": " "}', "no text"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, name, content, reason):
    with pytest.raises(DocumentError, match=f"(?s){name}.*{reason}"):
        read(write(tmp_path, name, content))


def test_a_pdf_without_text_is_named(tmp_path):
    make_pdf(tmp_path / "scan.pdf", "")
    with pytest.raises(DocumentError, match=r"scan\.pdf: .*1 pages but no text"):
        read(tmp_path / "scan.pdf")


def test_a_path_that_does_not_exist_and_a_kind_that_is_unknown_are_named(tmp_path):
    with pytest.raises(DocumentError, match=r"no file or folder .*gone"):
        find_files([tmp_path / "gone"])
    with pytest.raises(DocumentError, match=r"no known kind \(\.exe\)"):
        find_files([write(tmp_path, "a.exe", b"x")])


def test_folders_are_searched_below_hidden_files_left_out_and_names_are_stable(tmp_path):
    for name in ("book/b.md", "book/sub/a.txt", "book/.hidden/x.md", "book/.x.md", "book/picture.png"):
        write(tmp_path, name, "# x")
    names = [file.name for file in find_files([tmp_path / "book", tmp_path / "book" / "b.md"])]
    assert names == ["book/b.md", "book/sub/a.txt"]


def test_a_missing_reader_says_what_to_install(tmp_path, monkeypatch):
    make_pdf(tmp_path / "a.pdf", "x")
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'kvpacket-rag\[readers\]'"):
        read(tmp_path / "a.pdf")


# -- through the store --------------------------------------------------------------------------------------------


def test_comments_and_declarations_are_not_on_the_page(tmp_path):
    (document,) = read(
        write(tmp_path, "c.html", "<!DOCTYPE html><!-- secret --><p>shown</p><pre><code>a\n  b</code></pre>")
    )
    assert document.text == "shown\n\na\nb"


def test_nested_tables_are_read_once(tmp_path):
    page = "<table><tr><td>outer<table><tr><td>in1</td><td>in2</td></tr></table></td></tr></table>"
    (document,) = read(write(tmp_path, "t.html", page))
    assert document.text.count("in1") == 1


def test_json_lines_without_ids_and_with_odd_line_ends(tmp_path):
    rows = '{"id": null, "text": "one"}\n{"id": "", "text": "two\u2028three"}\r\n{"text": "four"}'
    documents = read(write(tmp_path, "r.jsonl", rows))
    assert [d.id for d in documents] == ["r.jsonl#1", "r.jsonl#2", "r.jsonl#3"]
    assert documents[1].text == "two\u2028three"


def test_a_missing_reader_spoils_only_its_own_file(open_store, tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    make_pdf(tmp_path / "book" / "a.pdf", "x")
    write(tmp_path, "book/b.txt", "text")
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    report = open_store().add_paths([tmp_path / "book"])
    assert report.added == 1
    assert "pip install" in report.failed[0][1]


def test_documents_added_otherwise_are_not_taken_for_parts_of_a_file(open_store, tmp_path):
    store = open_store()
    path = write(tmp_path, "a.txt", "whole")
    store.add([Document("page one", id="a.txt page 1", source=str(path.resolve()))])
    store.add_paths([path])
    assert {d.id for d in store.documents()} == {"a.txt", "a.txt page 1"}


def test_unreadable_files_in_a_folder_are_reported_and_the_others_added(open_store, tmp_path):
    write(tmp_path, "book/good.txt", "a good file")
    write(tmp_path, "book/bad.txt", b"")
    report = open_store().add_paths([tmp_path / "book"])
    assert report.added == 1
    ((path, reason),) = report.failed
    assert path.endswith("bad.txt")
    assert "empty" in reason


def test_an_unreadable_file_named_directly_changes_nothing(store, tmp_path):
    good, bad = write(tmp_path, "good.txt", "good"), write(tmp_path, "bad.txt", b"")
    with pytest.raises(DocumentError, match=r"bad\.txt"):
        store.add_paths([good, bad])
    assert len(store.documents()) == len(handbook())


def test_a_changed_json_lines_file_loses_what_it_no_longer_holds(open_store, tmp_path):
    store = open_store()
    path = write(tmp_path, "r.jsonl", '{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}')
    store.add_paths([path])
    write(tmp_path, "r.jsonl", '{"id": 1, "text": "one"}\n{"id": 3, "text": "three"}')
    report = store.add_paths([path])
    assert (report.unchanged, report.added) == (1, 1)
    assert [d.id for d in store.documents()] == ["r.jsonl#1", "r.jsonl#3"]


def test_a_folder_of_the_same_name_elsewhere_replaces_nothing(open_store, tmp_path):
    store = open_store()
    write(tmp_path, "one/book/a.txt", "from one")
    write(tmp_path, "two/book/a.txt", "from two")
    store.add_paths([tmp_path / "one" / "book"])
    with pytest.raises(DocumentError, match=r"would replace 'book/a\.txt'"):
        store.add_paths([tmp_path / "two" / "book"])
    assert store.search("from", k=1)[0].chunk.text == "from one"
