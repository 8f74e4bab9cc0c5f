"""The path through the course: the landing page's cards, with their times, and its exercises."""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
WORDS, LINES = 175, 20  # per minute: of prose, and of code in visible cells
PAPER, GRADED, RIDDLE = 5, 10, 2  # minutes for an exercise, for a folded answer in a lab

CARD = re.compile(r"^:::\{grid-item-card\} \d+ · (.+)\n((?:.*\n)*?):::$", re.MULTILINE)
ENTRY = re.compile(r"\*\*\[(.+)\]\((\w+)\.md\)\*\* · (\d+) min<br>")
LAB = re.compile(r"\[([^]]+)\]\(\.\./notebooks/(\w+)\.ipynb\) · (\d+) min")


class Lab(NamedTuple):
    """A lab of a chapter; `minutes` has its graded exercises in it."""

    name: str
    title: str
    minutes: int


class Chapter(NamedTuple):
    """A chapter as the landing page has it; `minutes` is for reading it."""

    part: str
    page: str
    title: str
    minutes: int
    labs: list[Lab]


def path() -> list[Chapter]:
    """All chapters, in the order of the landing page."""
    text = (ROOT / "book" / "index.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    cards = CARD.findall(text)
    return [_chapter(part, entry) for part, card in cards for entry in card.strip().split("\n\n")]


def hours() -> tuple[float, float]:
    """Hours to read the path, and hours in its labs."""
    chapters = path()
    labs = sum(lab.minutes for chapter in chapters for lab in chapter.labs)
    return sum(chapter.minutes for chapter in chapters) / 60, labs / 60


def _chapter(part: str, entry: str) -> Chapter:
    found = ENTRY.match(entry)
    if not found:
        raise ValueError(f"index.md: expected a chapter and its minutes, got {entry!r}")
    labs = [Lab(name, title, int(minutes)) for title, name, minutes in LAB.findall(entry)]
    title, page, minutes = found.groups()
    return Chapter(part, page, title, int(minutes), labs)


def on_paper(chapter: Chapter) -> list[str]:
    """The titles of the exercises at the end of a chapter; the lab's have no solution there."""
    text = (ROOT / "book" / f"{chapter.page}.md").read_text()
    found = re.findall(r"^:+\{exercise\} (.+)\n:label: (.+)$", text, re.MULTILINE)
    return [title for title, label in found if f"{{solution}} {label}\n" in text]


def graded(chapter: Chapter) -> list[str]:
    """The names of the exercises of a chapter's labs, each of which has a grader."""
    return [name for lab in chapter.labs for name in exercises(lab)]


def exercises(lab: Lab) -> list[str]:
    """The names of a lab's exercises."""
    tags = [tag for *_, tags in cells(lab) for tag in tags]
    names = [tag.removeprefix("exercise-") for tag in tags if tag.startswith("exercise-")]
    return [name.replace("-", " ").replace("_", " ") for name in names]


def project_lines(file: str) -> int:
    """The number of lines that the reader writes in the project's file, if they write ours."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse((ROOT / "lib" / "from_scratch" / f"{file}.py").read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines |= {n for each in body for n in range(each.lineno, (each.end_lineno or 0) + 1)}
    return len(lines)


def cells(lab: Lab) -> list[tuple[str, str, list[str]]]:
    """The type, the source and the tags of each cell."""
    cells = json.loads((ROOT / "notebooks" / f"{lab.name}.ipynb").read_text())["cells"]
    return [(c["cell_type"], "".join(c["source"]), c["metadata"].get("tags", [])) for c in cells]
