"""What this book needs beyond Sphinx: MathJax, a readable API, and links of its own."""

import gc
import os
import sys
from importlib.resources import as_file, files

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.fileutil import copy_asset

from house import (
    brief,
    claims,
    columns,
    downloads,
    drawn,
    evidence,
    lab_figures,
    labs,
    light,
    minutes,
    online,
    prompts,
    python,
    references,
    run_it,
    search_texts,
    stacks,
    tables,
    terms,
)

# The one script that reads TeX, and its fonts: 1.6 of the package's 35 MB.
MATHJAX = {"tex-mml-chtml.js": "", "output/chtml/fonts/woff-v2": "output/chtml/fonts/woff-v2"}


def copy_mathjax(app: Sphinx) -> None:
    """Let the pages find MathJax beside them: they load nothing from elsewhere."""
    target = app.outdir / "_static" / "mathjax"
    with as_file(files("mathjax") / "static" / "mathjax" / "es5") as source:
        for part, folder in MATHJAX.items():
            (target / folder).mkdir(parents=True, exist_ok=True)
            copy_asset(source / part, target / folder)


def skip_field(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out what a NamedTuple says of its fields: "Alias for field number 0"."""
    return True if (getattr(member, "__doc__", "") or "").startswith("Alias for field") else None


def find_elsewhere(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element
) -> Element | None:
    """Link a bare name, as docstrings use it, to the one object of ours that has it."""
    bare = node["reftarget"]
    if node.get("refdomain") != "py" or "." in bare:
        return None
    python = env.get_domain("py")
    found = {name for name, *_ in python.get_objects() if name.endswith(f".{bare}")}
    if len(found) != 1:
        return None
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", found.pop(), node, content)


def write_on_all_cores(app: Sphinx, env: BuildEnvironment) -> None:
    """Write pages in forked processes; to read them side by side, not all extensions can."""
    if sys.platform == "linux":
        app.parallel = 1 + len(os.sched_getaffinity(0))  # ours only hands them out


def write_the_rest(app: Sphinx, failed: Exception | None) -> None:
    """Write pages that are missing once more, one by one, and so raise what kept them.

    Sphinx 7's `ParallelTasks.add_task` catches a process's error, ends the others, and goes on.
    """
    pages = [] if failed else sorted(app.env.found_docs)
    missing = [name for name in pages if not os.path.exists(app.builder.get_outfilename(name))]
    if missing:
        app.builder.parallel_ok = False
        app.builder.write(missing, missing, "again")


def setup(app: Sphinx) -> dict[str, bool]:
    gc.disable()  # a build keeps nearly all that it makes: a quarter of its time went here
    app.connect("builder-inited", copy_mathjax)
    app.connect("autodoc-skip-member", skip_field)
    app.connect("missing-reference", find_elsewhere)
    app.connect("env-check-consistency", write_on_all_cores)
    app.connect("build-finished", write_the_rest)
    content = (
        labs,
        lab_figures,
        claims,
        columns,
        drawn,
        evidence,
        minutes,
        prompts,
        run_it,
        tables,
    )
    page = (brief, online, python, references, search_texts, downloads, light, stacks, terms)
    for part in (*content, *page):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
