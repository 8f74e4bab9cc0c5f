"""Graders of the chapter on MapReduce."""

import math
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np

from course.ask.table import Exercise, Table
from course.ask.verdict import (
    LIMIT,
    Grader,
    Wrong,
    alone,
    ask,
    draws,
    number,
    patient,
    raised,
    whole,
)
from minidist.errors import TaskError
from minidist.mapreduce.map_reduce import map_reduce
from minidist.schedule.replay import goal
from minidist.schedule.schedule import bounds

Pair = tuple[Any, Any]
Mapper = Callable[[str], Iterable[Pair]]
Reducer = Callable[[Any, list[Any]], Any]
MEAN_OF_MEANS = (
    " A mean of means is not the mean: a text with many words would count no more than one with "
    "few. Let the pairs carry what can be added up, and divide in the reducer alone."
)
TEXTS = ["An apple a day", "all bees buzz; Bob, too", "a banana", "", "42 eggs? 7!"]


def _drawn() -> list[str]:
    """Texts of words that a learner cannot know."""
    draw = draws(10)
    made = ["".join(draw.choices("abcdet", k=draw.randrange(1, 9))) for _ in range(60)]
    return [" ".join(made[:5]).upper(), ", ".join(made[5:40]), "", " ".join(made[40:])]


def words(text: str) -> list[str]:
    """The words of a text: letters only, in small letters."""
    return re.findall("[a-z]+", text.lower())


@Grader
def mean_length(mapper: Mapper, combiner: Reducer, reducer: Reducer) -> str:
    """Grade a job that finds the mean length of the words that begin with each letter."""
    alone(_in_one_process, mapper, combiner, reducer)
    _on_workers(mapper, combiner, reducer)
    return (
        "for two collections of texts: the means are the same without the combiner, with it, and "
        "with it applied twice, and once more on two real workers with three reducers. What is "
        "shuffled can be added up, so it does not matter who adds first."
    )


def _in_one_process(mapper: Mapper, combiner: Reducer, reducer: Reducer) -> None:
    for texts in (TEXTS, _drawn()):
        right, boxes = _right(texts), [_pairs(mapper, text) for text in texts]
        _compare(right, _reduced(reducer, chain(*boxes)), "Without a combiner")
        once = _reduced(reducer, chain(*(_reduced(combiner, box) for box in boxes)))
        _compare(right, once, "With the combiner in each map task", MEAN_OF_MEANS)
        parts = [part for box in boxes for part in (box[: len(box) // 3], box[len(box) // 3 :])]
        twice = _reduced(combiner, chain(*(_reduced(combiner, part) for part in parts)))
        how = "With the combiner applied to its own output"
        _compare(right, _reduced(reducer, twice), how, MEAN_OF_MEANS)
    _check_saving(mapper, combiner)


def _right(texts: Sequence[str]) -> dict[str, float]:
    lengths = _groups((word[0], len(word)) for word in words(" ".join(texts)))
    return {letter: sum(own) / len(own) for letter, own in lengths.items()}


def _pairs(mapper: Mapper, text: str) -> list[Pair]:
    most = 2 * len(words(text)) + 100
    try:
        given = _all(ask(mapper, text, case=f"in the mapper, for {text!r:.80}, "), text)
        pairs = [(key, value) for key, value in islice(given, most)]
    except (TypeError, ValueError) as error:
        what = "for one text the mapper must yield pairs (letter, value)"
        raise Wrong(f"{what}; for {text!r} it does not: {error}.") from error
    if len(pairs) == most:
        raise Wrong(
            f"for {text!r:.80} the mapper yields {most} pairs or more; expected one per word."
        )
    return pairs


def _all(given: Any, text: str) -> Iterator[Any]:
    """Everything that a learner's generator yields; an exception makes the answer wrong."""
    iterator = iter(given)
    try:
        yield from iterator
    except NotImplementedError:
        raise
    except Exception as error:
        raise Wrong(f"for {text!r:.80} the mapper raised {raised(error)}.") from error


def _groups(pairs: Iterable[Pair]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _reduced(function: Reducer, pairs: Iterable[Pair]) -> list[Pair]:
    """The results of a combiner or a reducer, key by key."""
    name = getattr(function, "__name__", "your function")
    return [
        (key, ask(function, key, values, case=f"in {name}, for {key!r} and {values!r:.80}, "))
        for key, values in _groups(pairs).items()
    ]


def _compare(right: dict[str, float], means: Iterable[Pair], how: str, hint: str = "") -> None:
    answer = dict(means)
    if set(answer) != set(right):
        raise Wrong(f"{how} {_why_keys({*map(str, answer)}, {*right})}")
    for letter, mean in right.items():
        if not _is(found := answer[letter], mean):
            shown = f"{found:.4g}" if isinstance(found, float) else f"{found!r:.80}"
            if isinstance(found, tuple | list) and len(found) == 2:
                hint = " Is that a sum and a number? Divide them in the reducer."
            raise Wrong(
                f"{how}, the words with {letter!r} have a mean length of {shown}; expected "
                f"{mean:.4g}.{hint}"
            )


def _why_keys(found: set[str], right: set[str]) -> str:
    """A sentence on keys that are not the first letters of words."""
    extra, missing = sorted(found - right), sorted(right - found)
    if extra and all(len(key) > 1 for key in extra):
        why = "A key is a letter, not a word."
    elif extra and any(key.lower() != key for key in extra):
        why = "Upper and lower case are one letter: make words small first."
    elif extra:
        why = "Words are letters only: split at all else."
    else:
        why = "Yield a pair for every word."
    lists = {"there is no {}": missing, "there are {}, too": extra}
    said = [text.format(", ".join(map(repr, keys[:12]))) for text, keys in lists.items() if keys]
    return f"the keys are not the first letters of the texts' words: {', and '.join(said)}. {why}"


def _is(given: object, mean: float) -> bool:
    try:
        return math.isclose(number(given), mean, rel_tol=1e-6)
    except TypeError:
        return False


def _check_saving(mapper: Mapper, combiner: Reducer) -> None:
    text = "an apple " * 500
    before = len(pickle.dumps([(word[0], (len(word), 1)) for word in words(text)]))
    after = len(pickle.dumps(_reduced(combiner, _pairs(mapper, text))))
    if after > before / 10:
        raise Wrong(
            f"the means are right, but for a text of 1,000 words {after:,} bytes are shuffled, of "
            f"{before:,} without a combiner. Return one small value, however many come."
        )


def _on_workers(mapper: Mapper, combiner: Reducer, reducer: Reducer) -> None:
    how: dict[str, Any] = {"reducers": 3, "combiner": combiner, "attempts": 1}
    how |= {"timeout": patient(LIMIT)}
    try:
        found = map_reduce(TEXTS, mapper, reducer, **how).whole
    except TaskError as error:
        raise Wrong(f"On real workers: {error}") from error
    _compare(_right(TEXTS), found.items(), "On real workers")


@Exercise
def owner() -> Table:
    """Grade function((element, numel), reducers), a partition that makes reduce-scatter.

    It must give the rank that owns this element of `numel` after a reduce-scatter.
    """
    draw = draws(11)
    worlds = [4, 1, 3, 8, *draw.sample(range(5, 30), 3)]
    drawn = [
        (numel, n)
        for n in worlds
        for numel in (4 * n, 10, n + 1, n, 1, 97, draw.randrange(100, 300))
    ]

    @cache
    def holders(numel: int, ranks: int) -> list[int]:
        promised = goal("reduce_scatter", ranks, ranks)
        holder = [next(r for r in range(ranks) if promised[r][c] is not None) for c in range(ranks)]
        found: list[int] = np.repeat(holder, np.diff(bounds(numel, ranks))).tolist()
        return found

    return Table(
        cases=[((element, numel), n) for numel, n in drawn for element in range(numel)],
        right=lambda key, ranks: holders(key[1], ranks)[key[0]],
        told=lambda key, ranks: f"For element {key[0]} of {key[1]} on {ranks} ranks",
        read=whole,
        expected="a whole number, the rank",
        slips={
            "You deal the elements out like playing cards; a rank owns consecutive ones.":
                lambda key, ranks: key[0] % ranks,
            "The longer slices come first.": lambda key, ranks: key[0] * ranks // key[1],
            "There is no such rank: the first slices are longer by one.":
                lambda key, ranks: key[0] // max(1, key[1] // ranks),
            "Slices differ by one element at most: the last need not be shorter.":
                lambda key, ranks: key[0] // -(-key[1] // ranks),
            "The last slice is not longer than the others: the first are.":
                lambda key, ranks: min(key[0] // max(1, key[1] // ranks), ranks - 1),
            "Ranks count from 0.": lambda key, ranks: holders(key[1], ranks)[key[0]] + 1,
            "Rank 0 owns the first slice.":
                lambda key, ranks: ranks - 1 - holders(key[1], ranks)[key[0]],
        },
        solved=f"for {len(worlds)} numbers of ranks from 1 to {max(worlds)}, even where they do "
        "not divide: every element goes to the rank on which a reduce-scatter leaves it. Such a "
        "shuffle is a reduce-scatter.",
    )  # fmt: skip
