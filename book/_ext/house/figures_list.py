"""`{figures}`: all numbered figures of the book, with their captions, in its order."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from house.pages import doctree, in_order


class Figures(SphinxDirective):
    """The directive."""

    def run(self) -> list[nodes.Node]:
        """Leave a note; pages that come later have not been read yet."""
        return [PlaceForFigures()]


class PlaceForFigures(nodes.General, nodes.Element):
    """Where the list goes."""


class ListFigures(SphinxPostTransform):
    """Put the list where a page asks for it."""

    default_priority = 5

    def run(self, **_: object) -> None:
        """Replace each note."""
        for place in list(self.document.findall(PlaceForFigures)):
            items = [
                self.item(number, page, name)
                for page in in_order(self.env)
                for name, number in self.env.toc_fignumbers.get(page, {}).get("figure", {}).items()
            ]
            place.replace_self(nodes.definition_list("", *items))

    def item(self, number: tuple[int | str, ...], page: str, name: str) -> nodes.Node:
        """A figure's number, which leads to it, and its caption."""
        figures = doctree(self.env, page).findall(nodes.figure)
        figure = next(each for each in figures if name in each["ids"])
        caption = next(figure.findall(nodes.caption)).deepcopy()
        address = f"{self.app.builder.get_relative_uri(self.env.docname, page)}#{name}"
        text = f"Fig. {'.'.join(map(str, number))}"
        link = nodes.reference("", text, refuri=address, internal=True)
        title = nodes.Text(f", {self.env.titles[page].astext()}")
        return nodes.definition_list_item(
            "",
            nodes.term("", "", link, title),
            nodes.definition("", nodes.paragraph("", "", *caption.children)),
        )


def setup(app: Sphinx) -> None:
    app.add_directive("figures", Figures)
    app.add_post_transform(ListFigures)
