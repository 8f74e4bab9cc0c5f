"""`make check` runs the tests of what changed."""

from pathlib import Path

from tools.changed import ROOT, own_tests

TESTS = {
    "lib/minidist/parallel/zero/optimizer.py": ["zero/test_optimizer.py"],
    "lib/minidist/parallel/zero/slices.py": ["zero"],  # none has its name: those of its room
    "lib/course/chapters/ring/exercises.py": ["claims/test_ring.py", "course/test_ring.py"],
    "notebooks/ring.ipynb": ["claims/test_ring.py", "course/test_ring.py"],
    "tests/book/test_changed.py": ["book/test_changed.py"],
    "tests/book/test_gone.py": [],
    "README.md": ["book/test_readme.py"],
    "Makefile": [],
}


def test_a_file_has_its_own_tests_or_those_of_its_room() -> None:
    found = {name: own_tests(Path(name)) for name in TESTS}
    assert found == {name: [ROOT / "tests" / each for each in TESTS[name]] for name in TESTS}
