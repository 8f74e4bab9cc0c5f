"""Questions to guess at before a page answers: `guess.js` keeps the guess and says how far it was.

The answer is a value that the page's own cell has computed. Without scripts it is folded away.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from course.widgets.editor import marked
from course.widgets.page import as_json

GUESS = """\
<figure class="minidist-widget guess" id="guess-{name}" data-name="{name}">
<figcaption><strong>Guess.</strong> <span class="goal">{question}</span></figcaption>
<script type="application/json">{data}</script>
{choices}<details><summary>The answer</summary><p>{answer}</p></details>
</figure>
"""
CHOICES = """\
<ul class="plain">{items}</ul>
"""
BOARD = """\
<figure class="minidist-widget guesses">
<figcaption><strong>Your guesses</strong></figcaption>
<p class="plain">Where scripts may run, what you guess in the chapters is collected here.</p>
</figure>
"""


class Guess(NamedTuple):
    """A question and its answer: a number above zero, or one of the choices."""

    name: str  #: unique in the book, because the guess is kept under it
    question: str
    answer: float | str
    unit: str
    choices: Sequence[str]

    def __repr__(self) -> str:
        return self.question

    @property
    def shown(self) -> str:
        """The answer as it is read: a number to three digits, in the notation 1,790."""
        if isinstance(self.answer, str):
            return self.answer
        return f"{float(f'{self.answer:.3g}'):,.10g}"

    def _repr_html_(self) -> str:
        data = {"answer": self.answer, "shown": self.shown, "unit": self.unit}
        items = "".join(f"<li>{escape(each)}</li>" for each in self.choices)
        return GUESS.format(
            name=self.name,
            question=marked(self.question),
            data=as_json({**data, "choices": [*self.choices]}),
            choices=CHOICES.format(items=items) if items else "",
            answer=escape(f"{self.shown} {self.unit}".strip()),
        )


class Board(NamedTuple):
    """All that a reader has guessed, in whichever chapter, beside the answers."""

    def __repr__(self) -> str:
        return "Your guesses"

    def _repr_html_(self) -> str:
        return BOARD


def guess(
    name: str, question: str, *, answer: float | str, unit: str = "", choices: Sequence[str] = ()
) -> Guess:
    """Ask a question before the page answers it.

    Args:
        name: What the guess is kept under, unique in the book.
        question: A sentence, with `code` and *emphasis*.
        answer: A number above zero, or one of `choices`.
        unit: Of a number.
        choices: What to pick from, instead of entering a number.

    Raises:
        ValueError: The answer cannot be guessed.
    """
    if choices:
        if answer not in choices:
            raise ValueError(f"{name}: the answer, {answer!r}, is none of {choices}")
    elif isinstance(answer, str) or not 0 < answer < float("inf"):
        raise ValueError(f"{name}: expected a number above zero, and the answer is {answer!r}")
    return Guess(name, question, answer if choices else float(answer), unit, choices)


def guesses() -> Board:
    """The reader's guesses in all chapters, drawn against the answers."""
    return Board()
