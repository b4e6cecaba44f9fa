"""Synthetic questions, generated from seeds: short biographies of fictional people, and a fact hidden in filler text.

No model can know the answers, so a correct answer comes from the context.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from kvpacket_rag.errors import InputError
from kvpacket_rag.training.samples.sample import Sample

__all__ = ["GENERATORS", "biography", "generate_samples", "needle"]


def _list(text: str, between: str = " ") -> list[str]:
    return text.split(between)


_FIRST = _list(
    "Alva Bruno Celia Dario Edda Falk Greta Hanno Ilse Jonas Kaja Lorenz Mira Nils Olga Piet Ruth Sven Thea Ulf "
    "Vera Wim Yara Zeno"
)
_LAST = _list(
    "Arnesen Birk Calder Dorn Eklund Farrow Gade Holm Iversen Jarl Kessler Lund Marsh Nordal Oster Pryce Quist "
    "Ravn Stroud Thorne Ullman Vance Wolff Yates"
)
_TOWNS = _list(
    "Almhult Brevik Corvey Dunmore Elsfleth Farsund Gandria Holbeck Ilmenau Jever Kerzers Lomma Meldorf Nidau "
    "Orsova Pirna Rauma Sligo Tolmin Uzes Varde Wismar"
)
_WORK = _list(
    "baker beekeeper bookbinder cartographer clockmaker dentist fisherman gardener glassblower judge librarian "
    "locksmith midwife nurse organist pilot potter printer surveyor tailor teacher translator"
)
_HOBBIES = _list(
    "archery chess climbing dancing fencing gliding juggling knitting origami painting photography rowing sailing "
    "skating sketching stargazing surfing weaving"
)
_PETS = _list(
    "a grey parrot|an old donkey|a blind cat|two white geese|a spotted dog|a tame crow|a lame goat|three hens|a large tortoise|a pair of finches",
    "|",
)

_BIOGRAPHY = (
    "{name} was born in {born} in the year {year}. {name} works as a {work} in {town}. In the evenings {name} is fond of {hobby}. "
    "At home {name} keeps {pet}. {name} studied for {study} years and once won a prize of {prize} crowns."
)
_QUESTIONS = {
    "born": "Where was {name} born?",
    "year": "In which year was {name} born?",
    "work": "What is the profession of {name}?",
    "town": "In which town does {name} work?",
    "hobby": "What is {name} fond of in the evenings?",
    "pet": "Which animals does {name} keep at home?",
    "prize": "How many crowns was the prize that {name} won?",
}


def _rng(kind: str, seed: int | str, number: int) -> random.Random:
    return random.Random(f"{kind}:{seed}:{number}")  # noqa: S311 - repeatable, no secret


def biography(number: int, k: int, seed: int | str) -> Sample:
    """Generate `k` profiles of fictional people, and a question about one fact of the first."""
    rng = _rng("biography", seed, number)
    if k > len(_FIRST) * len(_LAST):
        raise InputError(f"There are names for {len(_FIRST) * len(_LAST)} profiles, but {k} were requested.")
    names = rng.sample([f"{first} {last}" for first in _FIRST for last in _LAST], k)
    people: list[dict[str, str]] = [
        {
            "name": name,
            "born": rng.choice(_TOWNS),
            "year": str(rng.randint(1931, 1999)),
            "work": rng.choice(_WORK),
            "town": rng.choice(_TOWNS),
            "hobby": rng.choice(_HOBBIES),
            "pet": rng.choice(_PETS),
            "study": str(rng.randint(2, 9)),
            "prize": str(rng.randint(100, 9999)),
        }
        for name in names
    ]
    field = rng.choice(list(_QUESTIONS))
    passages = tuple(_BIOGRAPHY.format(**person) for person in people)
    return Sample(
        _QUESTIONS[field].format(**people[0]), (people[0][field],), passages, row=number, gold=1, complete=True
    )


_THINGS = _list(
    "lamp ladder violin suitcase tent kettle clock bicycle camera mirror drum barrel telescope saddle lantern globe"
)
_COLOURS = "amber black blue brown copper green grey ivory orange purple red silver white yellow".split(" ")  # noqa: SIM905
_PLACES = _list("harbour chapel library mill station bakery school tower stable market museum orchard quarry theatre")
_FILLER = (
    "The road to the {place} is quiet in the morning.",
    "A few people wait near the {place} and talk about the weather.",
    "Someone has painted the door of the {place} in {colour}.",
    "The old {thing} in the corner has not been moved for years.",
    "In the afternoon the light falls through the windows of the {place}.",
    "A {colour} bird sits on the roof and looks down at the street.",
    "Nobody remembers who built the {place} or when.",
    "The wind comes from the west and smells of rain.",
    "Children play with a {colour} ball beside the {place}.",
    "On Thursdays the {place} is open until nine.",
    "The keeper sweeps the floor and puts the {thing} back on its shelf.",
    "A letter lies on the table, but it has not been opened.",
)


def needle(number: int, k: int, seed: int | str, sentences: int = 10) -> Sample:
    """Generate `k` passages of filler sentences. The first contains, at any depth, the sentence with the answer."""
    rng = _rng("needle", seed, number)

    def filler() -> str:
        choice = {"place": rng.choice(_PLACES), "colour": rng.choice(_COLOURS), "thing": rng.choice(_THINGS)}
        return rng.choice(_FILLER).format(**choice)

    passages = [[filler() for _ in range(sentences)] for _ in range(k)]
    colour, thing, code = rng.choice(_COLOURS), rng.choice(_THINGS), str(rng.randint(1000, 9999))
    passages[0].insert(rng.randint(0, sentences), f"The number written under the {colour} {thing} is {code}.")
    question = f"Which number is written under the {colour} {thing}?"
    return Sample(question, (code,), tuple(" ".join(p) for p in passages), row=number, gold=1, complete=True)


GENERATORS: Mapping[str, Callable[[int, int, int | str], Sample]] = {"biography": biography, "needle": needle}


def generate_samples(kind: str, n: int, k: int, seed: int | str) -> list[Sample]:
    """Generate `n` samples of `k` passages. Equal seeds give equal samples."""
    if kind not in GENERATORS:
        raise InputError(f"There is no generator {kind!r}. Choose from {', '.join(GENERATORS)}.")
    return [GENERATORS[kind](number, k, seed) for number in range(n)]
