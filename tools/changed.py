"""Name the tests of what changed since the last commit, for `make check`.

Those of a file's own name, else those of its folder: `tests/zero/test_optimizer.py` for
`lib/minidist/parallel/zero/optimizer.py`, `tests/course/test_ring.py` for all in `chapters/ring`.
"""

import subprocess
from argparse import ArgumentParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def changed() -> list[Path]:
    """Files that differ from the last commit, relative to the root; new ones, too."""
    commands = "git diff --name-only HEAD", "git ls-files --others --exclude-standard"
    listed = [subprocess.check_output(each.split(), cwd=ROOT, text=True) for each in commands]
    return [Path(name) for name in "".join(listed).splitlines()]


def own_tests(path: Path) -> list[Path]:
    tests = ROOT / "tests"
    if path.parts[0] == "tests":
        return [ROOT / path] if path.name.startswith("test_") and (ROOT / path).exists() else []
    if "chapters" not in path.parts and (
        found := sorted(tests.rglob(f"test_{path.stem.lower()}.py"))
    ):
        return found
    for folder in reversed(path.parts[:-1]):
        if (tests / folder).is_dir():
            return [tests / folder]
        if found := sorted(tests.rglob(f"test_{folder}.py")):
            return found
    return []


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    print(*sorted({str(each.relative_to(ROOT)) for path in changed() for each in own_tests(path)}))
