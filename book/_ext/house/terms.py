"""Links say on hover where they lead: the first sentence of a term's definition, or of the caption
of another page's figure. `cards.js` shows it.
"""

import re
from functools import cache
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from house.pages import doctree as read

GLOSSARY = "book/glossary"
LINK = re.compile(r'<a class="reference internal" href="[^"#]+\.html#((?:term|fig)-[^"]+)"')
UNRESOLVED = re.compile(r" \([^()]*\bfig-[\w-]+\)")  # "(see Fig. 3)", before figures have numbers
SENTENCE = re.compile(r".+?\.(?=\s|$)", re.DOTALL)


def meanings(app: Sphinx) -> dict[str, str]:
    """Anchor → the first sentence of the definition there."""
    found = {}
    if GLOSSARY in app.env.found_docs:
        for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
            *terms, definition = item.children
            for term in terms:
                if isinstance(term, nodes.term):
                    found |= dict.fromkeys(term["ids"], first_sentence(definition))
    return found


def first_sentence(node: nodes.Element) -> str:
    """The beginning of what it says."""
    text = UNRESOLVED.sub("", " ".join(node.astext().replace(r"\cdot", "·").split()))
    first = SENTENCE.match(text)
    return first[0] if first else text


@cache
def captions(env: BuildEnvironment) -> dict[str, str]:
    """Name of a figure → the first sentence of its caption."""
    found: dict[str, str] = {}
    for page, numbered in env.toc_fignumbers.items():
        if "figure" in numbered:
            for figure in read(env, page).findall(nodes.figure):
                for caption in figure.findall(nodes.caption):
                    found |= dict.fromkeys(figure["ids"], first_sentence(caption))
    return found


def tell_meanings(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Write them into the links of the page."""
    if doctree is None or page == GLOSSARY or not LINK.search(context.get("body", "")):
        return
    known = meanings(app) | captions(app.env)

    def titled(link: re.Match[str]) -> str:
        meaning = known.get(link[1])
        return f'{link[0]} title="{escape(meaning)}"' if meaning else link[0]

    context["body"] = LINK.sub(titled, context["body"])


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", tell_meanings)
