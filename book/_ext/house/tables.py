"""Columns of numbers stand on the right, so that their digits stand below each other."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

NUMBER = re.compile(r"(?:\(no\)\s)?[~≈<>≤≥+−–-]?\s*\d[\d,. ]*(?:×|%|[^\W\d_]{0,3}(?:/s)?)?")
NOTHING = {"", "–", "—", "-"}


class AlignNumbers(SphinxPostTransform):
    """Mark the cells of such columns."""

    default_priority = 900  # when all numbers stand in their places

    def run(self, **_: object) -> None:
        """Of every table in which all rows are as long as the first."""
        for group in self.document.findall(nodes.tgroup):
            rows = [[*row.findall(nodes.entry)] for row in group.findall(nodes.row)]
            body = [row for row in rows if not isinstance(row[0].parent.parent, nodes.thead)]
            if not body or len({len(row) for row in rows}) > 1:
                continue
            for column, cells in enumerate(zip(*body, strict=True)):
                texts = [cell.astext().strip() for cell in cells]
                if any(map(NUMBER.fullmatch, texts)) and all(map(is_number, texts)):
                    for row in rows:
                        if not any(name.startswith("text-") for name in row[column]["classes"]):
                            row[column]["classes"].append("text-right")


def is_number(text: str) -> bool:
    return text in NOTHING or NUMBER.fullmatch(text) is not None


def setup(app: Sphinx) -> None:
    app.add_post_transform(AlignNumbers)
