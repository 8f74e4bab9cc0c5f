"""Run every lab and every chapter's cells, several at a time, into the cache that the book reads.

Sphinx would run them too, but one after the other. A document whose cells are in the cache already
is not run again.
"""

import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from myst_nb.core.read import is_myst_markdown_notebook, myst_nb_reader_plugin
from sphinx_external_toc.parsing import parse_toc_yaml
from traitlets.config import Config

from tools.kernels import KernelManager

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "_build" / ".jupyter_cache"  # where Jupyter Book looks
AT_ONCE = 3  # ranks wait for each other, so a few more than there are cores
TIMEOUT = 300  # seconds for a cell


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


def run(path: Path) -> ExecutionResult:
    """Run a document's cells in its own folder.

    Its kernel is heard over sockets in files: a free TCP port may be gone when it gets to it, to
    some other document's rank.
    """
    with TemporaryDirectory(prefix="kernel-") as sockets:
        ipc = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/socket"})
        how = {"timeout": TIMEOUT, "allow_errors": False, "kernel_manager_class": KernelManager}
        return single_nb_execution(read(path), cwd=str(path.parent), config=ipc, **how)


def keep(cache: JupyterCacheAbstract, path: Path, result: ExecutionResult) -> None:
    """Put the outputs where the book finds them."""
    bundle = CacheBundleIn(result.nb, str(path), data={"execution_seconds": result.time})
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def run_all() -> Iterator[str]:
    """Run what has not run yet; yields the names of those that failed."""
    cache = get_cache(CACHE)
    waiting = [path for path in documents() if executed(path) is None]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(run, path): path for path in waiting}
        for done in as_completed(running):
            path = running[done]
            name = path.relative_to(ROOT).as_posix()
            try:
                result = done.result()
            except Exception:
                print(f"{name}: its kernel failed\n{traceback.format_exc()}", file=sys.stderr)
                yield name
                continue
            if result.err:
                print(f"{name}: {result.err}", file=sys.stderr)
                yield name
            else:
                keep(cache, path, result)
                print(f"  {name}: {result.time:.0f} s", flush=True)
