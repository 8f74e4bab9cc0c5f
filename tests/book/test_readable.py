"""Chapters and labs as notebooks: nothing of MyST is left in what JupyterLab shows."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.book.rendered import soup
from tools import execute, readable
from tools.readable import Book, Built, Reader, notebook

ROOT = execute.ROOT
# Directives, roles, labels and options, outside of code.
RAW = re.compile(r"^\s*:{3,}|^`{3,}\{|\{[\w:-]+\}`|^\([\w-]+\)=$|^:[\w-]+: ", re.MULTILINE)
CODE = re.compile(r"^(`{3,}).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!http|attachment|mailto)([^)#]*)(?:#([^)]*))?\)")


@cache
def book() -> Book:
    return Book(ROOT)


PAGES = [page for page in book().titles if book().runs(page)]


@cache
def converted(page: str) -> nbformat.NotebookNode:
    return notebook(book(), Built(ROOT), page)


def words(page: str) -> str:
    cells = converted(page).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def test_nothing_of_myst_is_left_and_every_link_leads_somewhere() -> None:
    offenders = [f"{page}: {each}" for page in PAGES for each in RAW.findall(words(page))]
    for page in PAGES:
        for target, anchor in LINK.findall(CODE.sub("", words(page))):
            there = Path(page).parent / target if target else Path(page)
            name = Path(ROOT, there).resolve().relative_to(ROOT).with_suffix("").as_posix()
            placed = anchor.startswith(("fig-", "ex-", "sol-"))
            if name not in PAGES or (placed and f'id="{anchor}"' not in words(name)):
                offenders.append(f"{page}: ({target}#{anchor})")
    assert not offenders, "\n".join(offenders)


def test_no_solution_is_seen_and_no_cell_lacks_a_name_that_another_gave() -> None:
    offenders = []
    for page in PAGES:
        before, after = (
            [cell for cell in found if cell.cell_type == "code"]
            for found in (readable.cells(ROOT, page), converted(page).cells)
        )
        offenders += [
            f"{page}: seen: {cell.source[:80]}"
            for cell in filter(readable.is_solution, after)
            if not cell.source.startswith("%%capture solution\n")
            or not cell.metadata.jupyter.source_hidden
        ]
        hints = sum(cell.source == readable.FOLDED_BELOW for cell in converted(page).cells)
        if hints != sum(cell.source.startswith("%%capture solution\n") for cell in after):
            offenders.append(f"{page}: {hints} hints")
        known, kept = (
            set().union(*(readable.names(cell)[0] for cell in found)) for found in (before, after)
        )
        used = set().union(*(readable.names(cell)[1] for cell in after))
        offenders += [f"{page}: no cell gives {name}" for name in (used & known) - kept]
    assert not offenders, "\n".join(offenders)


PARTS = """# The ring

(the-place)=
## A place

A {term}`rank <ranks>`, {glue:text}`ms:.1f` ms, {numref}`fig-one`, {numref}`fig-other`, {eq}`eq-a`,
{ref}`a <the-place>`, {ref}`the-place`, {cite:p}`shoeybi2019`, {py:func}`~minidist.launch`.

$$
a = b
$$ (eq-a)

:::{admonition} A box
:class: rule
:name: a-box

Inside:

```python
x = {1: 2}
```
:::

:::{solution} ex-one
:label: sol-one
:class: dropdown

Yes.
:::

::::{tab-set}
:::{tab-item} One
`a`

```{literalinclude} ../scripts/slurm.sh
:language: bash
:end-before: "# Several"
```
:::
::::
"""
SHOWN = """# The ring

<a id="the-place"></a>

## A place

A rank, … ms, [Fig. 4.1](#fig-one), [Fig. L4.2](../notebooks/lab.ipynb#fig-other), (4.1),
[a](#the-place), [A place](#the-place), (Shoeybi et al., 2019), `minidist.launch`.

$$
a = b \\tag{4.1}$$

> <a id="a-box"></a>**A box**
>
> Inside:
>
> ```python
> x = {1: 2}
> ```

<details><summary>Solution</summary>

Yes.

</details>

> **One**
>
> `a`
>
> ```bash
> #!/bin/bash
> ```
"""


class Page(Book):
    """A chapter beside a lab, without files."""

    def __init__(self) -> None:
        self.root = ROOT
        self.titles = {"book/ring": "The ring", "notebooks/lab": "The lab"}
        self.figures = {"fig-one": ("book/ring", "4.1"), "fig-other": ("notebooks/lab", "L4.2")}
        self.labels = {"the-place": ("book/ring", "A place")}
        self.equations = {"eq-a": ("book/ring", "4.1")}


class Nothing(Built):
    """As before the first build."""

    def number(self, page: str, name: str, form: str) -> str:
        return "…"

    def picture(self, page: str, name: str) -> None:
        return None


def test_each_part_becomes_what_a_notebook_shows() -> None:
    seen = Reader(Page(), "book/ring", Nothing(ROOT)).text(PARTS)
    assert re.sub(r"\n{3,}", "\n\n", seen).strip() == SHOWN.strip()


@pytest.mark.usefixtures("book_is_built")
def test_figures_and_equations_have_the_books_numbers() -> None:
    def numbers(page: str) -> dict[str, str]:
        html = soup(f"{page}.html")
        figures = {
            each.find_parent("figure")["id"]: each.text.strip().removeprefix("Fig. ")
            for each in html.select("figcaption .caption-number")
        }
        equations = {
            each.find_parent("div")["id"].removeprefix("equation-"): each.find(string=True).strip(
                "()"
            )
            for each in html.select(".math .eqno")
        }
        return figures | equations

    numbered = {**book().figures, **book().equations}
    assert len({number for _, number in numbered.values()}) > len(PAGES)
    for page in {place for place, _ in numbered.values()}:
        ours = {name: number for name, (place, number) in numbered.items() if place == page}
        seen = numbers(page)
        assert ours == {name: seen.get(name) for name in ours}, page
    assert "**Fig. L4.1**" in words("notebooks/ring")
    assert "[Fig. L12.1](" in words("book/fsdp")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (":::{wonder} Title\n:::", "book/ring: unknown directive in ':::{wonder} Title'"),
        ("A {wonder}`word`.", "book/ring: unknown role in '{wonder}`word`'"),
    ],
)
def test_what_is_not_known_is_named_with_its_page(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Reader(Page(), "book/ring", Nothing(ROOT)).text(text)


def test_numbers_are_those_of_the_last_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(name: str, text: str) -> dict[str, Any]:
        data = {"application/papermill.record/text/plain": text}
        return {"data": data, "metadata": {"scrapbook": {"name": name}}}

    outputs = [said("ms", "12.34"), said("words", "'a ring'")]
    page = nbformat.from_dict({"cells": [{"outputs": outputs}]})
    monkeypatch.setattr(execute, "executed", lambda path: page)
    built = Built(ROOT)
    assert built.number("book/ring", "ms", ".1f") == "12.3"
    assert built.number("book/ring", "words", "s") == "a ring"
    assert built.number("book/ring", "other", "") == "…"


def test_a_check_goes_unless_a_later_cell_needs_it() -> None:
    def code(source: str, *tags: str) -> nbformat.NotebookNode:
        return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})

    cells = [
        code("from math import pi\nassert pi > 3\na = 1\nprint(a)", "remove-cell"),
        code("assert a", "remove-cell"),
        code("for b in [a]:\n    assert b", "remove-cell"),
        code("print(a)", "hide-input"),
        code("b = 2\nprint(b)", "hide-input"),
    ]
    kept = readable.without_checks(cells)
    assert [each.source for each in kept] == [
        "from math import pi\na = 1",
        "print(a)",
        "b = 2\nprint(b)",
    ]
    assert all(each.metadata.jupyter.source_hidden for each in kept)
    assert ast.parse(kept[0].source)
