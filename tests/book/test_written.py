"""Pages are written by several processes, and what fails in one of them fails the build."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONF = f"""
import sys
import time

sys.path.insert(0, {str(ROOT / "book" / "_ext")!r})
from house import write_on_all_cores, write_the_rest


def page(app, name, *_):
    if name == "page01":
        raise ValueError("nothing to show")


def slowly(*_):  # so that Sphinx still hands out pages when the first process has failed
    time.sleep(0.02)


def setup(app):
    app.connect("env-check-consistency", write_on_all_cores)
    app.connect("build-finished", write_the_rest)
    app.connect("html-page-context", page)
    app.connect("doctree-resolved", slowly)
"""


def test_a_page_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(CONF)
    names = [f"page{number:02}" for number in range(60)]
    (tmp_path / "index.rst").write_text(
        "Pages\n=====\n\n.. toctree::\n\n" + "".join(f"   {name}\n" for name in names)
    )
    for name in names:
        (tmp_path / f"{name}.rst").write_text(f"{name}\n======\n")
    command = [sys.executable, "-m", "sphinx", "-q", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "nothing to show" in done.stderr
    assert done.returncode
