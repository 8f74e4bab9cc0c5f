"""Tables of the page for instructors: weeks, chapters, their labs and their minutes."""

from collections.abc import Iterable, Mapping, Sequence

from IPython.display import Markdown

from course.pages import path
from course.pages.path import Chapter
from course.pages.table import table

COURSE = {chapter.page: chapter for chapter in path.path()}
PROJECT = {  # chapter → the files of the project that belong to it
    "ring": ["ring"],
    "ddp": ["ddp"],
    "zero": ["zero", "zero3"],
    "fsdp": ["fsdp"],
    "pipelines": ["pipeline"],
    "tensor": ["tensor"],
    "sequences": ["context"],
    "experts": ["expert"],
    "keep_going": ["local_sgd"],
}
SHORT = {  # chapters, and labs
    "half a day": ["ring", "lab ring", "ddp", "lab ddp"],
    "day 1, morning": ["why", "lab why", "ring", "lab ring"],
    "day 1, afternoon": ["ddp", "lab ddp", "feeding"],
    "day 2, morning": ["memory", "lab memory", "zero", "lab zero"],
    "day 2, afternoon": ["fsdp", "lab fsdp", "fsdp_practice", "disagree"],
}


def link(chapter: Chapter) -> str:
    """A link to a chapter, by its title."""
    return f"[{chapter.title}]({chapter.page}.html)"


def weeks(plan: Mapping[str, str]) -> Markdown:
    """Each week's chapters and aim, with minutes to read, for exercises on paper and for labs."""
    rows = [[week, *_week(pages.split(), aim)] for week, (pages, aim) in enumerate(plan.items(), 1)]
    parts = "minutes = read + exercises + labs"
    return table(["week", "chapters", "students learn to", parts, "lines of the project"], rows)


def work_of(pages: str) -> int:
    """Minutes for some chapters, "ddp feeding", their exercises and their labs."""
    return sum(_parts_of(pages.split()))


def chapters() -> Markdown:
    """All chapters, their exercises, and minutes for each."""
    head = ["chapter", "read", "exercises at its end", "lab", "graded in the lab"]
    return table(head, map(_row, COURSE.values()))


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


def _week(pages: Sequence[str], aim: str) -> list[object]:
    parts = _parts_of(pages)
    lines = sum(path.project_lines(file) for page in pages for file in PROJECT.get(page, []))
    names = "; ".join(link(COURSE[page]) for page in pages)
    return [names, aim, f"{sum(parts)} = {' + '.join(map(str, parts))}", lines or ""]


def _parts_of(pages: Iterable[str]) -> list[int]:
    """Minutes to read some chapters, for their exercises on paper, and for their labs."""
    found = [COURSE[page] for page in pages]
    return [
        sum(chapter.minutes for chapter in found),
        path.PAPER * sum(len(path.on_paper(chapter)) for chapter in found),
        sum(map(_lab_minutes, found)),
    ]


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
