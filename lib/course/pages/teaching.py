"""Tables of the page for instructors: chapters, their labs and their minutes."""

from collections.abc import Iterable, Mapping, Sequence

from IPython.display import Markdown

from course.pages import path
from course.pages.path import Chapter
from course.pages.table import table

COURSE = {chapter.page: chapter for chapter in path.path()}


def link(chapter: Chapter) -> str:
    """A link to a chapter, by its title."""
    return f"[{chapter.title}]({chapter.page}.html)"


def chapters(part: str) -> Markdown:
    """The chapters of a part, their exercises, and minutes for each."""
    rows = [_row(chapter) for chapter in COURSE.values() if chapter.part == part]
    return table(["chapter", "read", "exercises at its end", "lab", "graded in the lab"], rows)


def in_all(pages: Iterable[str], project: Mapping[str, Sequence[str]]) -> list[int]:
    """Minutes for chapters, for exercises on paper and for labs; lines of the project."""
    pages = list(pages)
    found = [COURSE[page] for page in pages]
    files = [file for page in pages for file in project.get(page, [])]
    return [
        sum(chapter.minutes for chapter in found),
        path.PAPER * sum(len(path.on_paper(chapter)) for chapter in found),
        sum(map(_lab_minutes, found)),
        sum(map(path.project_lines, files)),
    ]


def minutes(items: Iterable[str]) -> int:
    """Minutes of some chapters, "ring", and labs, "lab ring"."""
    return sum(_entry(item)[1] for item in items)


def schedule(sessions: Mapping[str, Sequence[str]]) -> Markdown:
    """What to do when, with links, and the minutes that it takes."""
    rows = [
        [when, "; ".join(_entry(item)[0] for item in items), minutes(items)]
        for when, items in sessions.items()
    ]
    return table(["when", "what", "minutes"], rows)


def _row(chapter: Chapter) -> list[object]:
    paper = _named(path.on_paper(chapter), path.PAPER)
    graded = _named(path.graded(chapter), path.GRADED)
    return [link(chapter), chapter.minutes, paper, _lab_minutes(chapter) or "", graded]


def _named(names: Sequence[str], each: int) -> str:
    return f"{len(names)} ({each * len(names)} min): {'; '.join(names)}" if names else ""


def _lab_minutes(chapter: Chapter) -> int:
    return sum(lab.minutes for lab in chapter.labs)


def _entry(item: str) -> tuple[str, int]:
    word, _, page = item.rpartition(" ")
    chapter = COURSE[page]
    if not word:
        return link(chapter), chapter.minutes
    links = [f"[{lab.title}](../notebooks/{lab.name}.html)" for lab in chapter.labs]
    return "; ".join(links), _lab_minutes(chapter)
