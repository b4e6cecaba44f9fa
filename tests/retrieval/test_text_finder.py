"""Chunks are found wherever they stand word for word, and nowhere else."""

from __future__ import annotations

import random
import threading

import pytest

from kvpacket_rag.retrieval.text_finder import SHORTEST, Match, TextFinder

TEXTS = {
    1: "The lamp is sold in green and in ochre.",
    2: "The lamp is sold in green and in ochre. The green one is made of glass.",  # begins like 1
    3: "Überall leuchten Lampen 💡 in allen Farben, auch 'ocker'.",
    4: "too short",
    5: "Wipe the shade with a dry cloth once a month.",
}


@pytest.fixture
def finder() -> TextFinder:
    made = TextFinder()
    made.add(list(TEXTS), list(TEXTS.values()))
    return made


def by_search(texts: dict[int, str], text: str) -> list[Match]:
    """Reference: look for every text at every place; from the left, the longest, the oldest."""
    found, at = [], 0
    while at < len(text):
        here = [(-len(t), i) for i, t in texts.items() if len(t) >= SHORTEST and text.startswith(t, at)]
        if here:
            length, i = min(here)
            found.append(Match(at, at - length, i))
            at -= length
        else:
            at += 1
    return found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The lamp",
        TEXTS[1],
        TEXTS[2],
        f"<doc>{TEXTS[3]}</doc>",
        f"{TEXTS[5]}{TEXTS[5]}\n\n{TEXTS[1]} {TEXTS[3]}",
        TEXTS[2][:-1],
        "x" + TEXTS[4] * 3,
        "💡" * 40 + TEXTS[5] + "💡",
    ],
)
def test_texts_are_found_from_the_left_the_longest_first(finder: TextFinder, text: str):
    assert finder.find(text) == by_search(TEXTS, text)


def test_what_is_found_equals_a_search_at_every_place_for_texts_of_few_letters():
    rng = random.Random(0)
    texts = {i: "".join(rng.choices("ab", k=rng.randint(12, 24))) for i in range(400)}
    finder = TextFinder()
    finder.add(list(texts), list(texts.values()))
    for _ in range(20):
        text = "".join(rng.choice([*texts.values(), "ab", "b" * 20]) for _ in range(12))
        found = finder.find(text)
        assert found == by_search(texts, text)
        assert all(text[m.start : m.stop] == texts[m.id] for m in found)


def test_removed_texts_are_not_found_and_of_equal_texts_the_oldest_that_is_left(finder: TextFinder):
    finder.add([9, 10], [TEXTS[5], TEXTS[5]])
    assert [m.id for m in finder.find(TEXTS[5])] == [5]
    finder.remove([5, 77])
    assert [m.id for m in finder.find(TEXTS[5])] == [9]
    finder.remove([9, 10])
    assert finder.find(TEXTS[5]) == []
    assert [m.id for m in finder.find(TEXTS[1])] == [1]


def test_a_short_text_does_not_hide_a_long_one_that_shares_its_place_in_the_table():
    finder = TextFinder()
    finder.add([1, 2], ["a" * SHORTEST, "a" * (SHORTEST - 1)])
    assert [m.id for m in finder.find("a" * SHORTEST)] == [1]


def test_half_characters_in_a_prompt_find_nothing_and_harm_nothing(finder: TextFinder):
    assert finder.find("\ud800" * 30 + TEXTS[5]) == [Match(30, 30 + len(TEXTS[5]), 5)]


def test_threads_may_find_while_texts_come_and_go(finder: TextFinder):
    wrong = []

    def look() -> None:
        for _ in range(50):
            if [m.id for m in finder.find(TEXTS[1] + TEXTS[5])] != [1, 5]:
                wrong.append(1)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100, 130):
        finder.add([number], [f"Another text of number {number}."])
        finder.remove([number])
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_chunks_that_begin_with_the_same_rule_do_not_fill_the_memory():
    rng = random.Random(0)
    texts = {i: "-" * rng.randint(16, 120) + f" chunk {i}" for i in range(3000)}
    finder = TextFinder()
    finder.add(list(texts), list(texts.values()))
    assert finder.find("-" * 16000) == []
    text = "-" * 500 + texts[7] + " and " + texts[8]
    assert [m.id for m in finder.find(text)][-1] == 8
