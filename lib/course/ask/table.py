"""An exercise that asks for a formula, as data: cases, right answers, known slips, sentences.

Tests take every slip for a wrong answer that must get its sentence, and add others that can be made
of any table: a constant, one that is right for the first cases, other types, changed arguments.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import update_wrapper
from operator import eq
from typing import Any

from course.ask.verdict import Grader, Wrong, alone, ask_as, number, pair, unaided

Case = tuple[Any, ...]
ONE = re.compile(r"(?<![\w,.])1 (?:([a-z-]*batch)es|([a-z]+)s)\b")  # "1 ranks" is to be "1 rank"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Questions of an exercise, and sentences about the answers."""

    cases: Sequence[Case]  # the arguments of each question
    right: Callable[..., Any]  # makes the answer to a case
    told: str | Callable[..., str]  # begins a verdict: from a case, or a format, "For {} ranks"
    solved: str  # said when every answer is right; "{cases}" is their number
    read: Callable[[Any], Any]  # makes an answer of what a function returns, or raises
    expected: str  # the form that `read` understands
    # A sentence about a mistake → what a function returns that makes it, in each case.
    slips: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    # A sentence, or "", about an answer that is no slip's, and its case.
    otherwise: Callable[..., str] = lambda *_: ""
    same: Callable[[Any, Any], bool] = eq  # true if an answer is as good as another
    show: Callable[[Any], str] = str  # an answer in a sentence

    def check(self, function: Callable[..., object]) -> str:
        """Ask for the answer to each case; Wrong at the first that is not right."""
        for case in self.cases:
            answer, right = self._ask(function, case), self.right(*case)
            if not self.same(answer, right):
                said = f"you say {self.show(answer)}; it is {self.show(right)}."
                why = self._why(function, answer, case)
                raise Wrong(f"{self._told(case)} {said} {why}".rstrip())
        return self.solved.replace("{cases}", f"{len(self.cases)}")

    def _told(self, case: Case) -> str:
        told = self.told.format(*case) if isinstance(self.told, str) else self.told(*case)
        return ONE.sub(r"1 \1\2", told)

    def _ask(self, function: Callable[..., object], case: Case) -> Any:
        given, where = deepcopy(case), f"{self._told(case)} "
        answer = ask_as(self.read, self.expected, function, *given, case=where)
        if given != case:
            raise Wrong(f"{where}what you are given is changed; read it only.")
        return answer

    def _why(self, function: Callable[..., object], answer: Any, case: Case) -> str:
        """The slip that gives this answer; if there are several, the one that gives others too."""
        fitting = [text for text in self.slips if self._is(text, answer, case)]
        for other in self.cases:
            if len(fitting) < 2:
                break
            try:
                given = self._ask(function, other)
            except Wrong:
                continue
            fitting = [text for text in fitting if self._is(text, given, other)] or fitting
        return fitting[0] if fitting else self.otherwise(answer, *case)

    def _is(self, slip: str, answer: Any, case: Case) -> bool:
        slipped = self.slips[slip](*case)
        return bool(answer == slipped) or self.same(answer, slipped)


def numbers(unit: str = "bytes", within: float = 1e-9, **table: Any) -> Table:
    """A table whose answers are numbers of a unit."""
    return Table(
        read=number,
        expected=f"a number of {unit}",
        same=lambda answer, right: abs(answer - right) <= within,
        show=lambda value: f"{amount(value)} {unit.removesuffix('s') if value == 1 else unit}",
        **table,
    )


def amount(value: float) -> str:
    """A number as a verdict shows it: a whole one with commas, another one to four digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


class Exercise(Grader[[Callable[..., object]]]):
    """The grader that a table makes; it asks in a process of its own."""

    def __init__(self, table: Callable[[], Table]) -> None:
        super().__init__(lambda function: alone(unaided, lambda: table().check(function)))
        update_wrapper(self, table)
        self.table = table


Seat = tuple[int, int]  # the node of a rank, and its local rank there


def seats(place: Callable[..., Seat], slips: dict[str, Callable[..., Seat]], **table: Any) -> Table:
    """A table that asks place(rank, ...), and knows more slips than those given."""
    return Table(
        right=place,
        read=pair,
        expected="(node, local rank)",
        slips={
            "The node comes first, then the local rank.": lambda *case: place(*case)[::-1],
            "Nodes and local ranks count from 0.":
                lambda *case: (place(*case)[0] + 1, place(*case)[1] + 1),
            "Local ranks count from 0.": lambda *case: (place(*case)[0], place(*case)[1] + 1),
            "That is the global rank; local ranks count from 0 on each node.":
                lambda rank, *where: (place(rank, *where)[0], rank),
            **slips,
        },
        **table,
    )  # fmt: skip
