"""What counts of a submission; and reading one never fails, waits, or takes long."""

import json
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import nbformat
import pytest

from course.submissions import files, labs
from course.submissions.handed_in import Submission, counted
from tests.support.submissions import RING, hand_in, lab

WRITTEN = "def my_bytes_sent(ranks, nbytes):\n    return 1\n\n\ngrade.bytes_sent(my_bytes_sent)"


def submission(*paths: Path) -> Submission:
    return counted(files.read([*paths]))


def pipe(place: Path) -> None:
    os.mkfifo(place)


def listening(place: Path) -> None:
    here = os.open(place.parent, os.O_RDONLY)  # a socket's path has to be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{place.name}")
    os.close(here)


def link(place: Path) -> None:
    place.symlink_to("/etc/passwd")


def folders(place: Path) -> None:
    place.mkdir()


def broken(place: Path) -> None:
    place.write_bytes(b"\0\xff[[[[")


def deep(place: Path) -> None:
    place.write_text("[" * 10**5)


def large(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(files.FILE + 1)


def empty(place: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(), place)


def bomb(place: Path) -> None:
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ddp.py", bytes(files.FILE + 1))


def climbing(place: Path) -> None:
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("/etc/ddp.py", "")


def unwritable(place: Path) -> None:
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("mine/" + 300 * "d" + ".py", "")


def folder_of_a_file(place: Path) -> None:
    place.mkdir()
    (place / "inner.py").touch()


ODD: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a named pipe": ("ddp.py", pipe, "mine/ddp.py was left out: it is a link, a pipe"),
    "a socket": ("ddp.py", listening, "mine/ddp.py was left out: it is a link, a pipe"),
    "a link out": ("ddp.py", link, "mine/ddp.py was left out: it is a link, a pipe"),
    "a link to a folder": ("lib", lambda p: p.symlink_to("/"), "it is a link to another folder"),
    "a folder named as a file": ("ddp.py", folders, ""),
    "no notebook": ("ring.ipynb", broken, "ring.ipynb was left out: it is no notebook"),
    "a nest": ("ring.ipynb", deep, "ring.ipynb was left out: it is no notebook"),
    "a large file": ("ddp.py", large, "mine/ddp.py was left out: it is larger than 16 MiB"),
    "a bomb": ("a.zip", bomb, "ddp.py was left out: it is larger than 16 MiB"),
    "no zip": ("a.zip", broken, "a.zip was left out: the zip cannot be read"),
    "a zip that climbs": ("a.zip", climbing, "its path leads out of the zip"),
    "a name too long": ("a.zip", unwritable, "was left out: its name is too long"),
    "a folder that is a file": ("ddp.py", folder_of_a_file, "its folder has the name of a file"),
    "another ending": ("ddp.py.txt", broken, "only names that end in .py, .ipynb, .jsonl, .json"),
    "another notebook": ("a.ipynb", empty, "No lab has the exercises of mine/a.ipynb"),
    "another archive": ("a.tar.gz", broken, "of archives, only .zip is read"),
    "strange names": ("\n\x1b[31m '\udcff.py", broken, ""),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_odd_is_left_out_with_a_word_and_the_rest_counts(what: str, tmp_path: Path) -> None:
    name, make, note = ODD[what]
    folder = hand_in(tmp_path / "anna", ring=RING)
    make(folder / "mine" / name)
    found = submission(folder)
    assert found.mine["ring.py"].decode() == RING
    assert "ddp.py" not in found.mine
    assert note in " ".join(found.notes)


def test_what_cannot_be_read_is_left_out_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hand_in(tmp_path / "anna", ring=RING, ddp=RING)
    opened = files._opened

    def refused(path: Path) -> object:
        if path.name == "ddp.py":
            raise PermissionError(13, "Permission denied")
        return opened(path)

    monkeypatch.setattr(files, "_opened", refused)
    found = submission(folder)
    assert [*found.mine] == ["ring.py"]
    assert found.notes == ["mine/ddp.py was left out: it cannot be read (Permission denied)."]


def test_a_hundred_thousand_files_are_not_read(tmp_path: Path) -> None:
    folder = hand_in(tmp_path / "anna", ring=RING)
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        for number in range(files.FILES + 10):
            archive.writestr(f"{number}.py", "")
    assert f"Of more than {files.FILES:,} files only the first were read." in (
        submission(folder).notes
    )


def test_learners_are_folders_and_zips_and_nothing_else(tmp_path: Path) -> None:
    for name in ("anna", "a b ü", "\x1b[31m", ".ipynb_checkpoints", "__MACOSX"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "ben").symlink_to("/etc")
    with zipfile.ZipFile(tmp_path / "cleo.zip", "w") as archive:
        archive.writestr("work/mine/ring.py", RING)
        archive.writestr("__MACOSX/work/mine/._ring.py", "")
    found, ignored = files.learners(tmp_path)
    assert {*found} == {"anna", "a b ü", r"\x1b[31m", "cleo"}
    assert ignored == ["__MACOSX", "ben", "notes.txt"]
    assert submission(*found["cleo"]).mine == {"ring.py": RING.encode()}


def test_the_newest_copy_counts_that_somebody_has_worked_in(tmp_path: Path) -> None:
    folder = hand_in(tmp_path / "anna" / "lab 1", ring=RING, which=lab("which"))
    nbformat.write(lab("ring", bytes=WRITTEN), folder / "ring (1).ipynb")
    nbformat.write(lab("ring", bytes=WRITTEN.replace("1", "2")), folder / "ring-old.ipynb")
    nbformat.write(lab("ring"), folder / "ring.newer.ipynb")
    for age, name in enumerate(("ring.newer", "ring (1)", "ring-old")):
        os.utime(folder / f"{name}.ipynb", (10**9 - age, 10**9 - age))
    hand_in(tmp_path / "anna" / "backup", ring="old = 1\n")
    for path in (tmp_path / "anna" / "backup" / "mine").iterdir():
        os.utime(path, (10**8, 10**8))
    found = submission(tmp_path / "anna")
    assert found.mine == {"ring.py": RING.encode()}
    sources = {tag: cell.source for cell in found.labs["ring"] for tag in cell.tags}
    assert sources["exercise-bytes"] == WRITTEN
    assert found.notes == [
        "lab 1/mine counts, the newest copy; not backup/mine.",
        "lab 1/ring (1).ipynb counts, the newest copy; not lab 1/ring-old.ipynb.",
    ]


def test_the_newest_file_of_puzzles_counts_and_other_json_is_not_read(tmp_path: Path) -> None:
    folder = hand_in(tmp_path / "anna", ring=RING)
    exported = {"done": {}, "puzzles": {"deadlock": {"code": "x", "best": "y", "stars": 3}}}
    for age, name in enumerate(("progress (1)", "progress")):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(exported).replace("y", f"y{age}"))
        os.utime(path, (2 * 10**9 - age, 2 * 10**9 - age))
    (folder / "empty.json").write_text('{"puzzles": {}}')
    (folder / "none.json").write_text('["puzzles"]')
    (folder / "trace.json").write_text("{}")
    (folder / "large.json").write_text('"puzzles"' * files.EXPORTED)
    found = submission(tmp_path / "anna")
    assert found.puzzles == {"deadlock": "y0"}
    assert found.changed == 2 * 10**9
    assert found.notes == [
        "none.json was left out: this is not what Your progress exports ('list' object has no "
        "attribute 'get').",
        "progress (1).json counts, the newest copy; not progress.json.",
    ]
    assert submission(tmp_path / "anna").digest != Submission(found.mine).digest


@pytest.mark.parametrize("name", ["fsdp_experiments", "my solution", "fsdp_experiments-Copy1"])
def test_a_lab_is_known_by_its_exercises_whatever_its_name(name: str) -> None:
    cells = labs.cells_in(json.dumps(lab("fsdp_experiments")).encode())
    assert labs.lab_of(name, cells) == "fsdp_experiments"


def test_a_lab_that_has_lost_its_tags_is_known_by_its_graders() -> None:
    notebook = lab("ring")
    for cell in notebook.cells:
        cell.metadata.pop("tags", None)
    cells = labs.with_tags("anna ring", labs.cells_in(json.dumps(notebook).encode()))
    assert labs.lab_of("anna ring", cells) == "ring"
    assert {tag for cell in cells for tag in cell.tags} == {*labs.stubs("ring")}


def test_a_chapter_is_no_lab_of_its_name() -> None:
    assert labs.lab_of("ring", [labs.Cell((), "1 + 1")]) is None


def test_only_the_files_of_the_project_may_be_handed_in(tmp_path: Path) -> None:
    (tmp_path / "anna" / "lib" / "from_scratch").mkdir(parents=True)
    (tmp_path / "anna" / "lib" / "from_scratch" / "ring.py").write_text(RING)
    assert submission(tmp_path / "anna").mine == {}, "the lesson is nobody's solution"
    (tmp_path / "anna" / "ring.py").write_text(RING)
    assert submission(tmp_path / "anna").mine == {"ring.py": RING.encode()}
    assert PurePosixPath("ring.py") in files.read([tmp_path / "anna"]).files
