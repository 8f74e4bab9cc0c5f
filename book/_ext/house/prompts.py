"""A folded cell says what is in it, and several in a row are one: no "code" hangs in the air."""

import re

from docutils.nodes import Node, Text, container, document, literal_block
from sphinx.application import Sphinx

# What a folded cell without output is called, by the first of these that occurs in it.
CONTENTS = {
    "imports": re.compile(r"^(import|from) \w", re.MULTILINE),
    "definitions": re.compile(r"^(def|class) \w", re.MULTILINE),
    "setup": re.compile(""),
}


def is_folded(node: Node | None) -> bool:
    """Whether the node is a cell that shows its output alone, or nothing."""
    return (
        isinstance(node, container)
        and node.get("nb_element") == "cell_code"
        and node.get("hide_mode") == "input"
    )


def shows(cell: container) -> bool:
    """Whether the cell has output."""
    return any(each.get("nb_element") == "cell_code_output" for each in cell.children)


def prepend(source: str, cell: container) -> None:
    """Let the code of a cell begin with this."""
    block = next(iter(cell.findall(literal_block)))
    text = f"{source}\n\n\n{block.astext()}"
    block.rawsource, block.children = text, []
    block += Text(text)


def fold(app: Sphinx, doctree: document) -> None:
    """Join folded cells without output to the folded one below, and name those that stay."""
    for cell in list(doctree.findall(container)):
        unnamed = cell.get("prompt_show") == app.config.nb_code_prompt_show
        if is_folded(cell) and not shows(cell):
            source = next(iter(cell.findall(literal_block))).astext()
            below = cell.next_node(descend=False, siblings=True)
            if is_folded(below):
                prepend(source, below)
                cell.parent.remove(cell)
            elif unnamed:
                name = next(name for name, sign in CONTENTS.items() if sign.search(source))
                cell["prompt_show"], cell["prompt_hide"] = name, f"hide the {name}"
        elif unnamed and cell.get("hide_mode") == "all":
            cell["prompt_show"], cell["prompt_hide"] = "code and output", "hide code and output"


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", fold)
