"""The path through the course: the landing page's cards, with their times, and its exercises."""

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
WORDS, LINES = 175, 20  # per minute: of prose, and of code in visible cells
PAPER, GRADED, RIDDLE = 5, 10, 2  # minutes for an exercise, for a folded answer in a lab
FIGURE, FORMULA = 1, 0.5  # minutes
ROAD, FURTHER = ("why", "map_reduce", "collectives", "ring"), "## Further on"
UNSEEN = {"remove-cell", "remove-input", "hide-input", "hide-cell"}
NO_PROSE = re.compile(r"```.*?```|\$\$.*?\$\$|\{[\w:]+\}|\]\([^)]*\)", re.DOTALL)

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


def road() -> float:
    """Minutes from the first page to the end of the ring, with the labs' parts on the road."""
    chapters = [chapter for chapter in path() if chapter.page in ROAD]
    labs = [lab for chapter in chapters for lab in chapter.labs]
    return sum(reading_time(c, on_road=True) for c in chapters) + sum(
        lab_time(lab, on_road=True) for lab in labs
    )


def reading_time(chapter: Chapter, *, on_road: bool = False) -> float:
    """Estimated minutes for a chapter without its exercises.

    `on_road`: only up to the heading after which it goes further than the road.
    """
    text = (ROOT / "book" / f"{chapter.page}.md").read_text()
    before, _, rest = text.partition("\n## Exercises")
    text = before + rest[rest.find("\n## ") :]
    if on_road:
        text = text.partition(f"\n{FURTHER}\n")[0]
    cells = re.findall(r"```\{code-cell\}.*\n((?:.*\n)*?)```", text)
    code = [cell for cell in cells if not any(tag in cell for tag in UNSEEN)]
    figures = len(re.findall(r"^    name: fig-|\{lab-figure\}", text, re.MULTILINE))
    formulas = len(re.findall(r"^\$\$.*?\$\$|\{math\}", text, re.MULTILINE | re.DOTALL))
    told = _words([text]) / WORDS + _lines(code) / LINES
    return told + FIGURE * figures + FORMULA * formulas


def lab_time(lab: Lab, *, on_road: bool = False) -> float:
    """Estimated minutes for a lab with its exercises, or for what it has on the road."""
    found = cells(lab)
    if on_road:
        (end,) = (i for i, (_, source, _) in enumerate(found) if source.startswith(FURTHER))
        found = found[:end]
    prose = [source for kind, source, _ in found if kind == "markdown"]
    code = [(source, tags) for kind, source, tags in found if kind == "code"]
    seen = [source for source, tags in code if not UNSEEN & {*tags}]
    asked = sum(tag.startswith("exercise-") for _, tags in code for tag in tags)
    riddles = sum("hide-cell" in tags for _, tags in code) - asked
    return _words(prose) / WORDS + _lines(seen) / LINES + GRADED * asked + RIDDLE * riddles


def _words(texts: Iterable[str]) -> int:
    return sum(len(re.findall(r"[A-Za-z0-9][\w'-]*", NO_PROSE.sub("", text))) for text in texts)


def _lines(cells: Iterable[str]) -> int:
    return sum(len(cell.splitlines()) for cell in cells)


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
