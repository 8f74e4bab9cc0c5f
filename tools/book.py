"""Build the book so that no page in it is older than what it was made from.

Sphinx rebuilds the pages whose own text changed, and the execution cache runs the notebooks whose
own cells changed. Neither knows that a cell imports lib/, that a chapter carries a number out of
a lab, or that a page includes a piece of a file. So we ask first: what changed since the last
good build?

- nothing: there is nothing to do;
- only text (chapters, style, tests): render every page again, keep the cells' results;
- anything that a cell may see: start from nothing.

nbmake tests the cells first (`tools.execute`); Sphinx finds their outputs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from tools.execute import run_all

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
INDEX = BUILD / "html" / "index.html"
PRICES = BUILD / "prices"  # what pages have asked of the formulas: see course.pages.price
EXECUTED_WITH = BUILD / "executed-with"  # the inputs that the results in the cache belong to
RENDERED_FROM = BUILD / "rendered-from"  # the inputs of the last build that ended well

SOURCES = [
    "_config.yml", "_toc.yml", "pyproject.toml", "requirements.txt", "constraints.txt",
    "book", "lib", "notebooks", "benchmarks", "tools", "tests", "README.md", "CONTRIBUTING.md",
]  # fmt: skip
# No cell can see these, or the cache itself compares them (a chapter's cells): a change asks for
# new pages, not for new results.
TEXT = {".md", ".css", ".js", ".bib"}
TEXT_FOLDERS = {"tests", "tools"}


def is_leftover(path: Path) -> bool:
    """What tools leave beside the sources: caches, checkpoints, the editable install's notes."""
    return any(
        part.startswith(".") or part == "__pycache__" or part.endswith(".egg-info")
        for part in path.parent.parts
    )


def files() -> Iterator[Path]:
    """Every source file, relative to the root, in a fixed order."""
    for name in SOURCES:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            relative = path.relative_to(ROOT)
            if path.is_file() and not is_leftover(relative):
                yield relative


def is_text(path: Path) -> bool:
    return path.suffix in TEXT or path.parts[0] in TEXT_FOLDERS


@cache
def environment() -> str:
    packages = sorted(f"{found.metadata['Name']}=={found.version}" for found in distributions())
    return "\n".join([sys.version, *packages])


def digest(paths: list[Path]) -> str:
    """One fingerprint for these files and for the Python and packages that read them."""
    seen = hashlib.sha256(environment().encode())
    for path in paths:
        content = (ROOT / path).read_bytes()
        seen.update(f"\n{path.as_posix()} {len(content)}\n".encode())
        seen.update(content)
    return seen.hexdigest()


def fingerprints() -> tuple[str, str]:
    """What cells may see, and everything."""
    everything = list(files())
    return digest([path for path in everything if not is_text(path)]), digest(everything)


def recorded(stamp: Path) -> str:
    return stamp.read_text() if stamp.exists() else ""


def up_to_date() -> bool:
    return INDEX.exists() and recorded(RENDERED_FROM) == fingerprints()[1]


def write(stamp: Path, text: str) -> None:
    aside = stamp.with_suffix(".new")
    aside.write_text(text)
    aside.replace(stamp)


def discard(executed_with: str) -> None:
    """Remove what may be stale, before building: a build that fails must not leave old pages."""
    if recorded(EXECUTED_WITH) != executed_with:
        shutil.rmtree(BUILD, ignore_errors=True)
        BUILD.mkdir()
        write(EXECUTED_WITH, executed_with)
        return
    RENDERED_FROM.unlink(missing_ok=True)
    for folder in ("html", ".doctrees"):
        shutil.rmtree(BUILD / folder, ignore_errors=True)


def render() -> int:
    print("Rendering the pages; that takes about a minute ...", flush=True)
    jupyter_book = str(Path(sys.executable).with_name("jupyter-book"))
    command = [jupyter_book, "build", ".", "-W", "-n", "--keep-going"]
    return subprocess.run(command, cwd=ROOT).returncode


def imports_this_checkout() -> bool:
    """Whether cells will import the lib/ beside us: a copied or moved .venv points elsewhere."""
    spec = find_spec("minidist")
    return spec is not None and Path(spec.origin or "").is_relative_to(ROOT / "lib")


def main() -> int:
    if not imports_this_checkout():
        print("This .venv was made for another folder: remove it (rm -rf .venv).", file=sys.stderr)
        return 1
    executed_with, rendered_from = fingerprints()
    if up_to_date():
        print("Nothing changed since the book was built.")
    else:
        discard(executed_with)
        PRICES.mkdir(exist_ok=True)
        served = {"MINIDIST_BOOK": "1", "MINIDIST_PRICES": str(PRICES)}  # scripts, to all pages
        with patch.dict(os.environ, served):
            status = int(run_all()) or render()
        if fingerprints()[0] != executed_with:  # nobody knows what the results were made from
            EXECUTED_WITH.unlink(missing_ok=True)
        if status:
            print(
                "The book did not build. Next: mend the first warning or error above, and run "
                "`make book` again.",
                file=sys.stderr,
            )
            return status
        if fingerprints()[1] == rendered_from:
            write(RENDERED_FROM, rendered_from)
        else:
            print("Something was edited meanwhile: `make book` again will take it in.")
    print("The book is built. Next: read it, and run its labs with `make lab`.")
    print(f"Open {INDEX.as_uri()}")
    return 0


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    sys.exit(main())
