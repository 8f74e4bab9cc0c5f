"""Test every lab and every chapter's cells with nbmake, and keep their outputs for the book.

nbmake writes the outputs into the notebooks that it runs, so it runs copies; a chapter's copy is a
notebook too. A document whose cells are in the cache already is not run again.
"""

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from myst_nb.core.read import is_myst_markdown_notebook, myst_nb_reader_plugin
from sphinx_external_toc.parsing import parse_toc_yaml

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "_build" / ".jupyter_cache"  # where Jupyter Book looks
NBMAKE = ["--nbmake", "--overwrite", "--nbmake-timeout=300", "-p", "tools.kernels"]
COUNTED = ["-v", "--no-header", "-o", "console_output_style=count"]  # a line each: n of how many
AT_ONCE = 3  # ranks wait for each other, so a few more than there are cores


def documents() -> list[Path]:
    """The files with cells of the table of contents, those that launch ranks first."""
    found = []
    for name in parse_toc_yaml(ROOT / "_toc.yml"):
        lab, chapter = ROOT / f"{name}.ipynb", ROOT / f"{name}.md"
        if lab.exists():
            found.insert(0, lab)
        elif is_myst_markdown_notebook(chapter.read_text()):
            found.append(chapter)
    return found


def read(path: Path) -> nbformat.NotebookNode:
    """A lab or a chapter as a notebook, as Sphinx will read it."""
    if path.suffix == ".ipynb":
        return nbformat.read(path, as_version=4)
    return myst_nb_reader_plugin(str(path))


def executed(path: Path) -> nbformat.NotebookNode | None:
    """The document with the outputs of its cells as they are now; None if they have not run."""
    cache = get_cache(CACHE)
    try:
        record = cache.match_cache_notebook(read(path))
    except KeyError:
        return None
    return cache.get_cache_bundle(record.pk).nb


def copy(path: Path, folder: Path) -> str:
    """Write the document as a notebook to the same place in this folder."""
    target = folder / path.relative_to(ROOT).with_suffix(".ipynb")
    target.parent.mkdir(exist_ok=True)
    nbformat.write(read(path), target)
    return str(target)


class Keep:
    """Puts the outputs of what has passed where the book finds them."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            name = report.nodeid.split("::")[0]
            notebook = nbformat.read(name, as_version=4)
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # its times; the cache compares metadata
            bundle = CacheBundleIn(notebook, name)
            get_cache(CACHE).cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def run_all() -> int:
    """Run what has not run yet, a test for each document; pytest's exit status."""
    waiting = [path for path in documents() if executed(path) is None]
    if not waiting:
        return 0
    cells = f"the cells of {len(waiting)} labs and chapters"
    print(f"Running {cells}; all of them take about seven minutes ...", flush=True)
    with TemporaryDirectory(prefix="labs-") as name:
        folder = Path(name).resolve()
        copies = [copy(path, folder) for path in waiting]
        here = [f"--rootdir={folder}", f"--confcutdir={folder}"]
        # Those that take long come first, and no process takes several in advance.
        workers = [f"-n{min(AT_ONCE, len(copies))}", "--maxschedchunk=1"]
        with chdir(folder):
            return pytest.main([*NBMAKE, *COUNTED, *workers, *here, *copies], plugins=[Keep()])
