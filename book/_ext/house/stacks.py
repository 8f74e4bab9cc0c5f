"""A printed stack names the course's files from its folder on, wherever the book was built."""

from docutils.nodes import Text, document, literal_block
from sphinx.application import Sphinx


def shorten(app: Sphinx, doctree: document) -> None:
    """Leave out the folder of this build."""
    folder = f"{app.srcdir}/"
    for block in doctree.findall(literal_block):
        if folder in block.rawsource:
            block.rawsource = block.rawsource.replace(folder, "")
            block.children = [Text(block.rawsource)]


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", shorten)
