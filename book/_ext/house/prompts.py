"""A folded cell says what is in it: where no output follows, "code" would hang in the air."""

import re

from docutils.nodes import container, document
from sphinx.application import Sphinx

IMPORTS = re.compile(r"^(import|from) \w", re.MULTILINE)


def name_imports(app: Sphinx, doctree: document) -> None:
    """Call the code of a folded cell without output, if it imports, by that name."""
    for cell in doctree.findall(container):
        if cell.get("nb_element") != "cell_code" or cell.get("hide_mode") != "input":
            continue
        shows = any(each.get("nb_element") == "cell_code_output" for each in cell.children)
        if not shows and IMPORTS.search(cell.astext()):
            cell["prompt_show"], cell["prompt_hide"] = "imports", "hide the imports"
