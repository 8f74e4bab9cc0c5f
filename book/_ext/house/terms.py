"""A link to a term says on hover what the term means: the first sentence of its definition."""

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

GLOSSARY = "book/glossary"
LINK = re.compile(r'<a class="reference internal" href="[^"]*glossary\.html#(term-[^"]+)"')
SENTENCE = re.compile(r".+?\.(?=\s|$)", re.DOTALL)


def meanings(app: Sphinx) -> dict[str, str]:
    """Anchor → the first sentence of the definition there."""
    found = {}
    if GLOSSARY in app.env.found_docs:
        for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
            *terms, definition = item.children
            text = " ".join(definition.astext().replace(r"\cdot", "·").split())
            first = SENTENCE.match(text)
            for term in terms:
                if isinstance(term, nodes.term):
                    found |= dict.fromkeys(term["ids"], first[0] if first else text)
    return found


def tell_meanings(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Write them into the links of the page."""
    if doctree is None or page == GLOSSARY or not LINK.search(context.get("body", "")):
        return
    known = meanings(app)

    def titled(link: re.Match[str]) -> str:
        meaning = known.get(link[1])
        return f'{link[0]} title="{escape(meaning)}"' if meaning else link[0]

    context["body"] = LINK.sub(titled, context["body"])


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", tell_meanings)
