"""Under each term of the glossary: the page that first links to it."""

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from house.pages import doctree, in_order


class ShowFirstUses(SphinxPostTransform):
    """Add a link to each definition."""

    default_priority = 5

    def run(self, **_: object) -> None:
        """Look through the pages in the order of the book."""
        glossaries = list(self.document.findall(addnodes.glossary))
        if not glossaries:
            return
        first = self.first_uses()
        for item in (i for each in glossaries for i in each.findall(nodes.definition_list_item)):
            names = {term.astext().lower() for term in item.findall(nodes.term)}
            pages = [page for term, page in first.items() if term in names]
            for page in pages[:1]:
                address = self.app.builder.get_relative_uri(self.env.docname, page)
                link = nodes.reference(
                    "", self.env.titles[page].astext(), refuri=address, internal=True
                )
                definition = next(item.findall(nodes.definition))
                definition += nodes.paragraph("", "First linked from ", link, classes=["first-use"])

    def first_uses(self) -> dict[str, str]:
        """Term, in small letters → page."""
        first: dict[str, str] = {}
        for page in in_order(self.env):
            for use in doctree(self.env, page).findall(addnodes.pending_xref):
                if use["reftype"] == "term":
                    first.setdefault(use["reftarget"].lower(), page)
        return first


def setup(app: Sphinx) -> None:
    app.add_post_transform(ShowFirstUses)
