"""Questions to guess at before a page answers: `guess.js` keeps the guess and says how far it was.

The answer is a value that the page's own cell has computed. Without scripts it is folded away.
"""

from collections.abc import Sequence
from html import escape

from course.interactive.editor import marked
from course.interactive.page import Html, assets, figure, json_script

GUESS = """\
{data}
{choices}<details><summary>The answer</summary><p>{answer}</p></details>
"""
BOARD = (
    '<p class="plain">Where scripts may run, what you guess in the chapters is collected here.</p>'
)


def guess(
    name: str, question: str, *, answer: float | str, unit: str = "", choices: Sequence[str] = ()
) -> Html:
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
    items = "".join(f"<li>{escape(each)}</li>" for each in choices)
    shown = f"{answer}" if choices else digits(float(answer))
    data = {"answer": answer if choices else float(answer), "shown": shown, "unit": unit}
    body = GUESS.format(
        data=json_script({**data, "choices": [*choices]}),
        choices=items and f'<ul class="plain">{items}</ul>\n',
        answer=escape(f"{shown} {unit}".strip()),
    )
    named = {"id": f"guess-{name}", "data-name": name}
    asked = figure("guess", "Guess.", body, marked(question), **named)
    return Html(question, asked + assets("kept.js", "guess.js"))


def digits(answer: float) -> str:
    """A number as it is read: to three digits, in the notation 1,790."""
    return f"{float(f'{answer:.3g}'):,.10g}"


def guesses() -> Html:
    """All that a reader has guessed, in whichever chapter, drawn against the answers."""
    return Html("Your guesses", figure("guesses", "Your guesses", f"{BOARD}\n"))
