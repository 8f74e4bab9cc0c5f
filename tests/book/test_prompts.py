"""Folded cells of a page: one toggle for several in a row, named by what is in it."""

import sys
from types import SimpleNamespace
from typing import Any

from docutils.frontend import get_default_settings
from docutils.nodes import container, literal_block, paragraph
from docutils.utils import new_document

from tests.book.rendered import PAGES, soup
from tools.work import ROOT

sys.path.append(str(ROOT / "book" / "_ext"))
from house.prompts import fold

APP: Any = SimpleNamespace(config=SimpleNamespace(nb_code_prompt_show="code"))


def cell(source: str, *output: str, mode: str = "input", prompt: str = "code") -> container:
    """A cell as myst-nb leaves it."""
    made = container(nb_element="cell_code", hide_mode=mode, prompt_show=prompt)
    made += container("", literal_block(source, source), nb_element="cell_code_source")
    for text in output:
        made += container("", paragraph(text, text), nb_element="cell_code_output")
    return made


def folded(*cells: Any) -> list[tuple[str, str]]:
    """What a page with these cells shows of them: the prompt of each, and its code."""
    page = new_document("page", get_default_settings())
    page += cells
    fold(APP, page)
    return [
        (each["prompt_show"], next(iter(each.findall(literal_block))).astext())
        for each in page.findall(container)
        if each.get("nb_element") == "cell_code"
    ]


def test_folded_cells_without_output_join_the_folded_one_below() -> None:
    assert folded(cell("import torch"), cell("a = 1"), cell("draw(a)", "a picture")) == [
        ("code", "import torch\n\n\na = 1\n\n\ndraw(a)")
    ]
    assert folded(cell("a = 1"), cell("import torch")) == [("imports", "a = 1\n\n\nimport torch")]


def test_a_cell_that_shows_something_or_is_not_folded_stays_apart() -> None:
    text = paragraph("", "Between them.")
    apart = [cell("draw()", "a picture"), cell("show()", "another"), cell("a = 1"), text]
    apart += [cell("b = 2"), cell("print(b)", "2", mode=""), cell("c = 3"), cell("d", mode="all")]
    shown = ["draw()", "show()", "a = 1", "b = 2", "print(b)", "c = 3", "d"]
    assert [source for _, source in folded(*apart)] == shown


def test_what_stands_alone_is_named_by_what_is_in_it() -> None:
    named = {
        "import torch\n\ndef f(): ...": "imports",
        "def f(): ...": "definitions",
        "a = 1": "setup",
    }
    for source, name in named.items():
        assert folded(cell(source)) == [(name, source)]
        assert folded(cell(source, prompt="Solution")) == [("Solution", source)]
    assert folded(cell("a = 1", "1", mode="all")) == [("code and output", "a = 1")]


def test_no_page_says_code_over_nothing_or_folds_two_cells_in_a_row(book_is_built: None) -> None:
    offenders = []
    for page in PAGES:
        for each in soup(page).select("div.cell.tag_hide-input:has(> details)"):
            (prompt,) = each.select("summary > .collapsed")
            below = each.find_next_sibling()
            empty = each.select_one(":scope > .cell_output") is None
            joined = below is not None and "tag_hide-input" in below.get("class", [])
            if empty and (prompt.text == "code" or joined):
                offenders.append(f"{page}: {each.select_one('pre').text[:60]!r}")
    assert not offenders, "\n".join(offenders)
