"""At the end of each page that has cells: how to run them."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


class SayHowToRun(SphinxPostTransform):
    """Add a line to the page."""

    default_priority = 5

    def run(self, **_: object) -> None:
        """Only where there is something that a kernel can run."""
        from tools.pages import IN_THE_BROWSER

        cells = (
            each for each in self.document.findall(nodes.container) if "cell" in each["classes"]
        )
        if self.env.docname in IN_THE_BROWSER or not any(cells):
            return
        command, page = (
            nodes.literal(text=text) for text in ("make lab", f"{self.env.docname}.ipynb")
        )
        text = [
            "Run this page yourself: in the course's folder, ",
            command,
            " opens JupyterLab; there it is ",
            page,
            ".",
        ]
        parts = [nodes.Text(each) if isinstance(each, str) else each for each in text]
        last = self.document.children[-1]
        last += nodes.paragraph("", "", *parts, classes=["run-it"])


def setup(app: Sphinx) -> None:
    app.add_post_transform(SayHowToRun)
