"""The role `claim`, a link to a row of the ledger; anchors at the boxes and cells it leads to."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import ReferenceRole

LEDGER = "book/claims"


class ClaimRole(ReferenceRole):
    """`{claim}` with "TEXT <ID>", or with the id alone."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """A link with the text, or with the claim's id."""
        page = self.env.app.builder.get_relative_uri(self.env.docname, LEDGER)
        address = f"{page}#claim-{self.target}"
        return [nodes.reference("", self.title, refuri=address, internal=True)], []


class AnchorClaims(SphinxPostTransform):
    """Name chapters' boxes and labs' cells after the claims they meet, so that links find them."""

    default_priority = 5

    def run(self, **_: object) -> None:
        """Turn the tag of a cell, and a box's link to its row of the ledger, into ids."""
        for cell in self.document.findall(nodes.container):
            tags = [name for name in cell["classes"] if name.startswith("tag_claim-")]
            cell["ids"] += [tag.removeprefix("tag_") for tag in tags]
        for box in self.document.findall(nodes.admonition):
            rows = [link["refuri"].partition("#claim-") for link in box.findall(_leads_out)]
            box["ids"] += [f"said-{claim}" for _, _, claim in rows if claim]


def _leads_out(node: nodes.Node) -> bool:
    return isinstance(node, nodes.reference) and "refuri" in node


def setup(app: Sphinx) -> None:
    app.add_role("claim", ClaimRole())
    app.add_post_transform(AnchorClaims)
