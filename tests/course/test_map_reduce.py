"""The graders of the chapter on MapReduce: wrong answers."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from course.chapters.map_reduce import exercises as grade
from course.chapters.map_reduce.exercises import words
from tests.course.verdicts import diagnosed, reader


def lengths(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for word in words(text):
        yield word[0], (len(word), 1)


def added(_: str, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(length for length, _ in pairs), sum(count for _, count in pairs)


def mean(letter: str, pairs: list[tuple[int, int]]) -> float:
    length, count = added(letter, pairs)
    return length / count


def plain(text: str) -> list[tuple[str, int]]:
    return [(word[0], len(word)) for word in words(text)]


def average(_: str, values: list[float]) -> float:
    return sum(values) / len(values)


def counts_calls(_: str, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(length for length, _ in pairs), len(pairs)  # right the first time only


def raises_late(text: str) -> Iterator[Any]:
    yield from lengths(text)
    raise KeyError("x")


def known(letter: str, _: Any) -> float:
    """The means of the texts that the grader shows."""
    return {"a": 2.4, "d": 3.0, "b": 4.5, "t": 3.0, "e": 4.0}[letter]


def keeps_all(_: str, lists: list[list[int]]) -> list[int]:
    return list(chain(*lists))


def endless(text: str) -> Iterator[Any]:
    while True:
        yield "a", (1, 1)


def position(key: tuple[int, int], ranks: int) -> int:
    """Right as it stands."""
    size, longer = divmod(key[1], ranks)
    edge = longer * (size + 1)
    return key[0] // (size + 1) if key[0] < edge else longer + (key[0] - edge) // size


def test_another_right_way_is_right() -> None:
    def sums(letter: str, values: list[complex]) -> complex:
        return sum(values)

    def mapper(text: str) -> list[tuple[str, complex]]:
        return [(letter, complex(length, 1)) for letter, length in plain(text)]

    def divided(letter: str, values: list[complex]) -> np.float32:
        return np.float32(sums(letter, values).real / sums(letter, values).imag)

    def combining(text: str) -> list[tuple[str, complex]]:
        pairs = mapper(text)
        letters = sorted({letter for letter, _ in pairs})
        return [(each, sum(value for letter, value in pairs if letter == each)) for each in letters]

    assert grade.mean_length(mapper, sums, divided)
    assert grade.mean_length(combining, sums, divided), "a mapper may combine by itself"
    assert grade.owner(lambda key, ranks: np.int64(position(key, ranks)))


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.mean_length] = rows(r"""
mistake | (plain, average, average) | With the combiner in each.*A mean of means
mistake | (lengths, counts_calls, mean) | applied to its own output.*mean of means
mistake | (lambda t: [(w[0], (len(w), 1)) for w in t.split()], added, mean)
    | Without a combiner the keys.*missing \['e', 't'\].*|not expected
mistake | (lambda t: [(w, (len(w), 1)) for w in words(t)], added, mean) | not the first letters
unit | (lengths, added, lambda k, v: added(k, v)[0]) | combiner, the words with 'a'
off by one | (lengths, added, lambda k, v: mean(k, [*v, (0, 1)])) | the words with 'a'
type | (lengths, lambda k, v: list(v), mean) | it raised (TypeError|ValueError)
traffic | (lambda t: [(k, [v]) for k, v in plain(t)], keeps_all, lambda k, v: average(k,
    keeps_all(k, v)))
    | of 1,000 words [\d,]+ bytes are shuffled
gathers all | (lambda t: [(w[0], " " + w) for w in words(t)], lambda k, v: "".join(v), lambda k,
    v: average(k, [len(w) for w in "".join(v).split()]))
    | of 1,000 words [\d,]+ bytes are shuffled
type | (words, added, mean) | must yield pairs \(letter, value\)
type | (lengths, added, lambda k, v: str(mean(k, v))) | have a mean length of '2.4'
constant | (lengths, added, lambda k, v: 2.4) | the words with 'd' .* expected 3
these sizes | (lengths, added, known) | it raised KeyError|have a mean length of
raises | (raises_late, added, mean) | the mapper raised KeyError
hangs | (endless, added, mean) | the mapper yields 108 pairs or more; expected one per word
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
