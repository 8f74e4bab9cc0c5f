"""The graders of the chapter on MapReduce: typical mistakes."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from course.graders import map_reduce as grade
from course.graders.map_reduce import words
from tests.course.verdicts import each_mistake, says


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


def test_another_right_way_is_right() -> None:
    def sums(letter: str, values: list[complex]) -> complex:
        return sum(values)

    def mapper(text: str) -> list[tuple[str, complex]]:
        return [(letter, complex(length, 1)) for letter, length in plain(text)]

    assert grade.mean_length(mapper, sums, lambda k, v: sums(k, v).real / sums(k, v).imag)


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.mean_length] = [
    ((plain, average, average), r"With the combiner in each map task.*A mean of means"),
    ((lengths, counts_calls, mean), r"called on what it has given itself.*mean of means"),
    (
        (lambda t: [(w[0], (len(w), 1)) for w in t.split()], added, mean),
        r"Without a combiner the keys.*missing \['e', 't'\].*|not expected",
    ),
    ((lambda t: [(w, (len(w), 1)) for w in words(t)], added, mean), "not the first letters"),
    ((lengths, added, lambda k, v: added(k, v)[0]), "Without a combiner, the words with 'a'"),
    ((lengths, lambda k, v: list(v), mean), r"it raised (TypeError|ValueError)"),
    (
        (
            lambda t: [(k, [v]) for k, v in plain(t)],
            lambda k, v: list(chain(*v)),
            lambda k, v: average(k, list(chain(*v))),
        ),
        r"of 1,000 words the combiner makes",
    ),
    ((lambda t: words(t), added, mean), r"must give pairs \(letter, value\)"),
    ((raises_late, added, mean), "the mapper raised KeyError"),
]
MISTAKES[grade.owner] = [
    (lambda key, n: key[0] % n, r"element 1 to reducer 1; .* on rank 0\. You deal .* cards"),
    (
        lambda key, n: key[0] // -(-key[1] // n),
        r"10 elements on 4 ranks: .* \[3, 3, 3, 1\] elements; ",
    ),
    (
        lambda key, n: key[0] // (key[1] // n),
        r"10 elements on 4 ranks: for element 8 you say 4",
    ),
    (lambda key, n: key[0] * n // key[1], r"\[3, 2, 3, 2\] elements; they should have \[3, 3"),
    (lambda key, n: key[0], r"for element 4 you say 4; expected a whole number, 0\.\.3"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(*mistake) if isinstance(mistake, tuple) else grader(mistake))
