"""Lines of code on a phone: what they hold is unchanged, and they know how far in they begin."""

import sys
from pathlib import Path

from bs4 import BeautifulSoup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

sys.path.append(str(Path(__file__).parents[2] / "book" / "_ext"))
from house.columns import in_lines

CODE = '''\
def step(model):

    """Two lines,
    one string."""
    if model is not None:
        model.weight.untyped_storage().resize_(model.weight.nbytes)
'''


def block() -> str:
    """As Sphinx writes it."""
    text: str = highlight(CODE, PythonLexer(), HtmlFormatter(nowrap=True))
    return f"<pre><span></span>{text}</pre>"


def test_the_text_stays_as_it_was() -> None:
    assert BeautifulSoup(in_lines(block()), "html.parser").get_text() == CODE


def test_every_line_knows_its_indentation() -> None:
    lines = BeautifulSoup(in_lines(block()), "html.parser").select("pre > .line")
    ins = [int(str(line.get("style", "--in: 0")).split()[-1]) for line in lines]
    assert ins == [len(line) - len(line.lstrip()) for line in CODE.splitlines()]
    assert [len(line.select_one(".in").text) for line in lines if line.select_one(".in")] == [
        spaces for spaces in ins if spaces
    ]


def test_a_line_may_break_before_a_dot_and_after_a_parenthesis() -> None:
    last = in_lines(block()).splitlines()[5]
    pieces = [
        BeautifulSoup(f"<pre>{part}</pre>", "html.parser").get_text()
        for part in last.split("<wbr>")
    ]
    assert [piece for piece in pieces if piece] == [
        "        model", ".weight", ".untyped_storage()", ".resize_(", "model", ".weight",
        ".nbytes)",
    ]  # fmt: skip


def test_what_is_no_block_of_code_is_left_alone() -> None:
    assert in_lines("<pre>as it is</pre>") == "<pre>as it is</pre>"
