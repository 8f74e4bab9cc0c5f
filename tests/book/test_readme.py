"""The README's examples run as printed, its picture is what the simulator draws, and the map of
folders in CONTRIBUTING is the library's own.
"""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image

from course.pages.path import PAPER, on_paper, path, project_lines
from tests.test_architecture import FLOORS
from tools import screens
from tools.picture import GITHUB, PICTURES, svg
from tools.work import LESSON

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAP = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SHOWN = [
    (code, output)
    for (kind, code), (next_kind, output) in pairwise(BLOCKS)
    if (kind, next_kind) == ("python", "text")
]
(SCRIPT,) = (code for kind, code in BLOCKS if kind == "python" and "init_process_group" in code)


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_three_examples_print_what_is_printed(tmp_path: Path) -> None:
    assert len(SHOWN) == 3
    script, printed = tmp_path / "example.py", []
    for code, _ in SHOWN:
        script.write_text(code)
        printed.append(run(sys.executable, script))
    assert printed == [output for _, output in SHOWN]


def test_script_runs_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "average.py"
    script.write_text(SCRIPT)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    assert run(*launcher, "2", script) == "[0.5, 0.5, 0.5, 0.5, 0.5, 0.5]\n"


def test_pictures_are_not_stale() -> None:
    for mode, file in PICTURES.items():
        assert file.read_text() == svg(mode), "`make picture` makes it again"


def test_the_picture_moves_panel_by_panel_and_only_for_readers_who_like_it() -> None:
    for mode, file in PICTURES.items():
        parts = [*ElementTree.parse(file).iter()]
        style = str(next(each.text for each in parts if "style" in each.tag))
        still, moving = style.split("@media (prefers-reduced-motion: no-preference)")
        assert "animation" not in still
        assert ("invert" in still) == (mode == "dark")
        assert len(re.findall(r"{0% {opacity: 1}", moving)) == 6, "a glance sees all of it"
        panels = re.findall(r"^#(\w+) {animation", moving, re.MULTILINE)
        assert len(panels) == 6
        assert {*panels} <= {each.get("id") for each in parts}
    assert "in six steps" in README


def test_each_picture_is_small_and_has_words_and_a_variant_for_the_night() -> None:
    night = r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">'
    shown = re.findall(rf'{night}<img[^>]* alt="([^"]+)" src="([^"]+)"></picture>', README)
    assert len(shown) == README.count("<img") == 1 + len(screens.SHOWN)
    assert "![" not in README, "a picture that is a white card at night"
    named = {ROOT / file for dark, _, light in shown for file in (dark, light)}
    assert named == {*PICTURES.values(), *screens.SCREENS.glob("*.png")}
    assert all(file.is_relative_to(GITHUB) and file.stat().st_size < 150_000 for file in named)
    for dark, words, light in shown:
        assert dark.replace("-dark", "") == light.replace("-light", "")
        assert 40 < len(words) < 200


def test_the_card_of_a_link_has_the_size_that_sites_show() -> None:
    with Image.open(screens.CARD) as card:
        assert card.size == (1200, 630)
    assert screens.CARD.stat().st_size < 150_000


def test_make_targets_exist() -> None:
    named = {*re.findall(r"`?make (\w+)", README)} - {"and", "us"}
    assert named <= {*re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}


def test_pages_that_are_named_exist() -> None:
    named = {*re.findall(r"(?<!\*)\*([A-Z][\w ]+)\*(?!\*)", README)}
    pages = [page.read_text() for page in (ROOT / "book").glob("*.md")]
    assert {"Puzzles", "Your progress"} <= named
    assert named <= {re.findall(r"^# (.+)", page, re.MULTILINE)[0] for page in pages}


def test_chapters_and_hours_are_those_of_the_path() -> None:
    chapters = path()
    listed = re.findall(r"\[([^]]+)\]\(book/(\w+)\.md\)", README)
    assert listed == [(chapter.title, chapter.page) for chapter in chapters]
    parts = re.findall(r"^- \*\*(.+):\*\* \[", README, re.MULTILINE)
    assert parts == [*dict.fromkeys(chapter.part for chapter in chapters)]
    hours = [
        sum(chapter.minutes for chapter in chapters),
        PAPER * sum(len(on_paper(chapter)) for chapter in chapters),
        sum(lab.minutes for chapter in chapters for lab in chapter.labs),
        2 * sum(project_lines(Path(file).stem) for file in LESSON),
    ]
    (said,) = re.findall(r"\*\*Hours:\*\* (\d+) .+? (\d+) .+? (\d+) .+? (\d+)", README)
    offenders = [
        (int(h), m / 60) for h, m in zip(said, hours, strict=True) if abs(int(h) - m / 60) > 1
    ]
    assert not offenders


def test_paths_in_the_map_exist() -> None:
    paths = re.findall(r"^\| `([^`]+)` \|", MAP, re.MULTILINE)
    assert {"book/", "lib/minidist/", "tools/"} <= {*paths}
    roles = re.findall(r"^\| [^`|]+ \| `(.+)` \| `(.+)` \| `(.+)` \|$", MAP, re.MULTILINE)
    assert len(roles) == 4
    parallel = [f"lib/minidist/parallel/{path}" for role in roles for path in role]
    assert [path for path in paths + parallel if not (ROOT / path).exists()] == []


def test_the_tree_has_all_folders_of_the_library_in_the_order_of_their_imports() -> None:
    tree = MAP[MAP.index("\nlib/minidist/\n") :].partition("```")[0]
    rooms = re.findall(r"^  (\w+)(?:/|\.py) ", tree, re.MULTILINE)
    assert rooms == [*dict.fromkeys(room.split(".")[0] for floor in FLOORS for room in floor)]


def test_the_readme_leads_to_the_map() -> None:
    assert "[CONTRIBUTING.md](CONTRIBUTING.md) says what is where" in README
    assert "## What is where" in MAP
