"""The role `claim`, a link to a row of the ledger; and anchors at the cells that show it."""

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
    """Give each lab's cell that is a claim's evidence the claim's name, so that links find it."""

    default_priority = 5

    def run(self, **_: object) -> None:
        """Turn the tag of a cell into its id."""
        for cell in self.document.findall(nodes.container):
            tags = [name for name in cell["classes"] if name.startswith("tag_claim-")]
            cell["ids"] += [tag.removeprefix("tag_") for tag in tags]


def setup(app: Sphinx) -> None:
    app.add_role("claim", ClaimRole())
    app.add_post_transform(AnchorClaims)
