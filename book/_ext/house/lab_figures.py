"""`{lab-figure} NAME`: a lab's figure shown in a chapter too, with its number and caption."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from house.pages import doctree

logger = logging.getLogger(__name__)


class LabFigure(SphinxDirective):
    """The directive."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Leave a note; labs that come later have not been read yet."""
        place = PlaceForFigure(name=self.arguments[0])
        self.set_source_info(place)
        return [place]


class PlaceForFigure(nodes.General, nodes.Element):
    """Where a lab's figure goes."""


class ShowLabFigures(SphinxPostTransform):
    """Put a copy of the figure where a chapter asks for it."""

    default_priority = 5  # before Sphinx chooses among an output's formats

    def run(self, **_: object) -> None:
        """Replace each note."""
        here = self.env.docname
        for place in list(self.document.findall(PlaceForFigure)):
            labels = self.env.get_domain("std").anonlabels
            if place["name"] not in labels:
                logger.warning("no lab has a figure %r", place["name"], location=place)
                place.parent.remove(place)
                continue
            lab, name = labels[place["name"]]
            figures = doctree(self.env, lab).findall(nodes.figure)
            figure = next(each for each in figures if name in each["ids"]).deepcopy()
            number = self.env.toc_fignumbers[lab]["figure"][name]
            address = f"{self.app.builder.get_relative_uri(here, lab)}#{name}"
            text = f"Fig. {'.'.join(map(str, number))}"
            image, caption = (next(figure.findall(kind)) for kind in (nodes.image, nodes.caption))
            link = nodes.reference("", text, refuri=address, internal=True)
            caption.insert(0, [link, nodes.Text(", from the lab. ")])
            figure.children = [image, caption]  # without the output's other formats
            place.replace_self(figure)


def setup(app: Sphinx) -> None:
    app.add_directive("lab-figure", LabFigure)
    app.add_post_transform(ShowLabFigures)
