"""The landing page says where the course is, once it is published; links to pages have a card."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

HEADING = "How to run it"


class SayWhereItIs(SphinxPostTransform):
    """Begin the section on running it with how to get it."""

    default_priority = 5

    def run(self, **_: object) -> None:
        """Only on the landing page, and only if there are addresses."""
        from tools.site import published

        site = published(Path(self.app.srcdir))
        if not site or self.env.docname != self.config.root_doc:
            return
        (section,) = (
            title.parent
            for title in self.document.findall(nodes.title)
            if title.astext() == HEADING
        )
        line = nodes.paragraph()
        line += nodes.reference("", "Open the course in a codespace", refuri=site.codespace)
        line += nodes.Text(", where nothing needs installing. To have it on your own machine, run ")
        line += nodes.literal(text=f"git clone {site.repository}")
        line += nodes.Text(". This book is also ")
        line += nodes.reference("", "online", refuri=site.book)
        line += nodes.Text(".")
        section.insert(1, line)


def tell_address(
    app: Sphinx, page: str, template: str, context: dict[str, Any], *_: object
) -> None:
    """Let the template write the card's address in full: sites that show it want it so."""
    context["card"] = f"{app.config.html_baseurl}_static/card.png"


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", tell_address)
    app.add_post_transform(SayWhereItIs)
