"""All that a reader can have done, to tick; `progress.js` shows the ticks in the contents."""

import json
import re
from collections.abc import Mapping
from html import escape

from course.interactive.page import Html
from course.pages.path import ROOT, path
from course.puzzles.catalog import PUZZLES, stars_of

LISTS = """\
<div class="minidist-widget your-progress" data-stars="{stars}">
<p class="why">The book's page, where scripts may run, lists here what you have read and done.</p>
<div class="lists" hidden>
{lists}
<p><a href="puzzles.html">Puzzles</a>: <span class="earned">0</span> of {most} stars</p>
<p><label for="report">Paste here what <code>make grade</code> prints:</label>
<textarea id="report" rows="4" spellcheck="false"></textarea></p>
<p class="said" role="status"></p>
<div class="controls"><button type="button" class="export">Export</button>
<button type="button" class="import">Import</button>
<input type="file" accept=".json" aria-label="File with progress" hidden></div>
</div>
<div class="controls switch" hidden><input type="checkbox" id="keep-progress">
<label for="keep-progress">Show ticks, and keep them in this browser</label>
<button type="button" class="clear">Clear</button></div>
</div>
"""
LIST = '<fieldset><legend>{name}: <span class="count"></span></legend><ul>{items}</ul></fieldset>'
ITEM = """
<li><input type="checkbox" value="{name}" data-page="{page}" aria-label="{title}">
<a href="../{page}.html">{title}</a></li>"""


def progress(targets: Mapping[str, tuple[str, str]]) -> Html:
    """Chapters, labs and milestones to tick; `targets` is that of `course.project.report`."""
    chapters = path()
    labs = [lab for chapter in chapters for lab in chapter.labs]
    chapter_of = _project_chapters([chapter.page for chapter in chapters])
    lists = {
        "Chapters read": [_item(f"book/{each.page}", each.title) for each in chapters],
        "Exercises done": [_item(f"notebooks/{lab.name}", lab.title) for lab in labs],
        "Project": [_item(chapter_of[file], name, name) for name, (file, _) in targets.items()],
    }
    stars = {name: stars_of(puzzle) for name, puzzle in PUZZLES.items()}
    shown = (LIST.format(name=name, items="".join(items)) for name, items in lists.items())
    data, most = escape(json.dumps(stars)), sum(stars.values())
    text = LISTS.format(stars=data, most=most, lists="\n".join(shown))
    return Html("Your progress", text)


def _item(page: str, title: str, name: str = "") -> str:
    return ITEM.format(name=escape(name or page), page=page, title=escape(title))


def _project_chapters(pages: list[str]) -> dict[str, str]:
    """Each of the project's files, and the chapter that ends by asking for it."""
    texts = {f"book/{page}": (ROOT / "book" / f"{page}.md").read_text() for page in pages}
    return {
        file: page
        for page, text in texts.items()
        for asked in re.findall(r"\*\*The project.*", text)
        for file in re.findall(r"(\w+)\.py`", asked)
    }
