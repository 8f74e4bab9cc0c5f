"""Code that readers change and run in the page: no server, no network, nothing to install.

Who does what: `course.puzzles` says what is asked, as data; here that becomes HTML; `puzzles.js`
shows stars and a button; `editor.js` shows a text box and the report; and Python in the reader's
browser, which is Brython in a worker, writes the report. `python_script` is the file that brings
it. It and the editor are loaded once a reader presses the button.
"""

import json
import re
from functools import cache
from html import escape
from importlib.resources import files

from course.interactive.page import Html, figure, json_script
from course.puzzles import IN_THE_PAGE
from course.puzzles.catalog import EDITABLE, PUZZLES, stars_of

EDITOR = """\
{data}
{stars}
<div class="plain"><p>The book's page, where scripts may run, lets you edit this and run it.</p>
<pre>{stub}</pre></div>
{hints}"""
FOR_STARS = '<p class="hint">A star each: {says}.</p>'
FOLDED = "<details><summary>{name}</summary>{what}</details>\n"
ITEM = '<li data-name="{name}" data-stars="{stars}"><a href="#write-{name}">{title}</a></li>'


def editor(name: str) -> Html:
    """A puzzle, or a schedule to play with: a function to write, with its judge.

    A notebook shows it; the book's pages edit it.
    """
    puzzle = EDITABLE[name]
    folded = [(f"Hint {n}", f"<p>{marked(hint)}</p>") for n, hint in enumerate(puzzle.hints, 1)]
    if puzzle.solution:
        folded.append(("A solution", f"<pre>{escape(puzzle.solution)}</pre>"))
    says = "; ".join(mark["says"] for mark in puzzle.task["marks"])
    body = EDITOR.format(
        data=json_script({"task": puzzle.task, "stub": puzzle.stub}),
        stars=FOR_STARS.format(says=escape(says)) if stars_of(puzzle) else "",
        stub=escape(puzzle.stub),
        hints="".join(FOLDED.format(name=head, what=what) for head, what in folded),
    )
    named = {"id": f"write-{name}", "data-name": name, "data-stars": stars_of(puzzle)}
    html = figure("editor", puzzle.title, body, marked(puzzle.goal), **named)
    return Html(f"{puzzle.title}: {puzzle.goal}", html)


def stars() -> Html:
    """All puzzles, and where scripts may run, the stars that a reader has earned."""
    items = (
        ITEM.format(name=each.name, stars=stars_of(each), title=escape(each.title))
        for each in PUZZLES.values()
    )
    titles = ", ".join(puzzle.title for puzzle in PUZZLES.values())
    board = "\n".join(["<ol>", *items, "</ol>\n"])
    return Html(titles, figure("board-of-stars", "Your stars", board))


def marked(text: str) -> str:
    """Text as HTML, with `code` and *emphasis*."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", code)


# ---- Python in the page ----

# Brython takes a worker's address to pieces, and a worker made of text has none that it knows. As
# a file it also looks for no module anywhere else.
ADDRESS = """\
Object.defineProperty(self, "location", { value: {
  href: "file:///page/worker.js", origin: "null", pathname: "/page/worker.js" } });
"""
# What runs here may be somebody else's: it can compute, and say what it found. What is left of the
# network, such as `import`, the policy of editor.js shuts.
ALONE = """\
for (const name of ["fetch", "XMLHttpRequest", "WebSocket", "WebSocketStream", "WebTransport",
  "EventSource", "importScripts", "Worker", "BroadcastChannel", "indexedDB", "caches"]) {
  for (let each = self; each; each = Object.getPrototypeOf(each)) delete each[name];
}
"""
MAIN = """\
from browser import self as page
from javascript import JSON
from course.puzzles.judge import run

def answer(event):
    source, task = JSON.parse(event.data)
    page.postMessage(JSON.stringify(run(source, task)))

page.bind("message", answer)
page.postMessage("ready")
"""


@cache
def python_script() -> str:
    """A script that leaves the text of a worker in a variable, so that it needs no request."""
    brython = files("brython") / "data"
    modules = {"$timestamp": 1, **_stdlib("math", "__future__"), **_own()}
    parts = [
        ADDRESS,
        (brython / "brython.js").read_text("utf-8"),
        f"\n__BRYTHON__.use_VFS = true;\n__BRYTHON__.update_VFS({json.dumps(modules)});\n",
        ALONE,
        f"__BRYTHON__.runPythonSource({json.dumps(MAIN)});\n",
    ]
    return f"globalThis.minidistPython = {json.dumps(parts)};\n"


def _stdlib(*names: str) -> dict[str, object]:
    """Some of Brython's modules of the standard library."""
    text = (files("brython") / "data" / "brython_stdlib.js").read_text("utf-8")
    every, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    return {name: every[name] for name in names}


def _own() -> dict[str, object]:
    """The judge, and what it imports; a package is empty there."""
    packages = {name.rpartition(".")[0] for name in IN_THE_PAGE}
    packages |= {name.rpartition(".")[0] for name in packages}
    own: dict[str, object] = {name: [".py", "", [], 1] for name in sorted(packages)}
    for name in IN_THE_PAGE:
        package, _, module = name.rpartition(".")
        own[name] = [".py", (files(package) / f"{module}.py").read_text("utf-8"), []]
    return own
