"""Stars of a class: answers in exported files are judged again, and nothing in them is believed."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from course.puzzles import again
from course.puzzles.again import judge_again, refused
from course.puzzles.catalog import PUZZLES

CHEATS = [
    ("import os\n", "import of os in line 1"),
    ("from os import *\n", "import of os"),
    ("import math, sys\n", "import of math, sys"),
    ("x = ().__class__\n", "the attribute __class__"),
    ("def f():\n    yield 1\nf().gi_frame\n", "the attribute gi_frame in line 3"),
    ("class A(int):\n    pass\n", "a class, A"),
    ("__builtins__['x']\n", "the name __builtins__"),
    ("'{0.x}'.format(3)\n", "the attribute format"),
]


@pytest.mark.parametrize("name", PUZZLES)
def test_our_answer_has_all_stars_again(name: str) -> None:
    assert judge_again(PUZZLES[name].solution, PUZZLES[name]) == (3, "")


@pytest.mark.parametrize(("code", "why"), CHEATS)
def test_what_answers_do_not_need_is_not_run(code: str, why: str) -> None:
    assert why in refused(code)
    stars, says = judge_again(code + PUZZLES["broadcast"].solution, PUZZLES["broadcast"])
    assert stars == 0
    assert why in says


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("while True: pass\n", "it did not end within 1 s"),
        ("x = [0] * 10**12\n", "MemoryError"),
        ("x = open('/etc/hostname')\n", "NameError: name 'open' is not defined"),
        ("raise Exception('no')\n", "Exception: no"),
        ("def broadcast(ranks)\n", "Python cannot read it"),
        ("x = " + "(" * 5000, "Python cannot read it"),
        ("\0", "source code string cannot contain null bytes"),
        ("", "There is no function broadcast any more."),
    ],
)
def test_an_answer_costs_no_more_than_its_own_stars(
    code: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "SECONDS", 1 if "while" in code else 60)
    stars, why = judge_again(code, PUZZLES["broadcast"])
    assert (stars, says in why) == (0, True), why


def test_a_class_is_one_command(tmp_path: Path) -> None:
    solution, stub = PUZZLES["broadcast"].solution, PUZZLES["broadcast"].stub
    files = {
        "ada.json": {"puzzles": {"broadcast": {"code": "x", "best": solution, "stars": 0}}},
        "bob.json": {"done": {}, "puzzles": {"broadcast": {"code": stub, "stars": 3}}},
        "cy.json": {"puzzles": {"broadcast": {"code": "import os", "stars": 3}, "other": 3}},
        "dee.json": {"broadcast": {"code": "x = 1", "stars": 3}},
        "eve.json": [1],
    }
    for name, given in files.items():
        (tmp_path / name).write_text(json.dumps(given))
    (tmp_path / "flo.json").write_text("{no json")
    (tmp_path / "gus.txt").write_text("no file of ours")
    board = tmp_path / "stars.csv"
    command = [sys.executable, "-m", "course.puzzles", str(tmp_path), "--csv", str(board)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("ada   3 of 36", "bob   2 of 36", "cy    0 of 36"),
        *("dee   0 of 36", "eve   0 of 36", "flo   0 of 36"),
    ]
    rows = list(csv.DictReader(board.open()))
    assert [(row["learner"], row["broadcast"], row["stars"]) for row in rows][:2] == [
        ("ada", "3", "3"),
        ("bob", "2", "2"),
    ]
    said = done.stderr
    assert "cy, broadcast: it is not run here, since it has import of os in line 1." in said
    assert "dee, broadcast: There is no function broadcast any more." in said
    for name in ("eve", "flo"):
        assert f"{name}.json: this is not what Your progress exports" in said
