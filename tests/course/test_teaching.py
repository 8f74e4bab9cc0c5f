"""The tables of the page for instructors."""

from course.pages.teaching import COURSE, chapters, in_all, minutes, schedule


def test_minutes_are_those_of_chapters_and_of_their_labs() -> None:
    ring = COURSE["ring"]
    labs = sum(lab.minutes for lab in ring.labs)
    assert minutes(["ring", "lab ring"]) == ring.minutes + labs
    read, paper, in_labs, lines = in_all(["ring"], {"ring": ["ring"]})
    assert (read, in_labs) == (ring.minutes, labs)
    assert paper > 0 < lines


def test_tables_have_a_row_for_each_chapter_and_session() -> None:
    shown = chapters(COURSE["ring"].part).data
    assert "[The ring](ring.html)" in shown
    assert shown.count("\n| [") == sum(c.part == COURSE["ring"].part for c in COURSE.values())
    assert "../notebooks/ring.html" in schedule({"first": ["ring", "lab ring"]}).data
