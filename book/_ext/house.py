"""What this book needs beyond Sphinx: MathJax, a readable API page, labs' figures in chapters."""

from importlib.resources import as_file, files

from docutils import nodes
from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.fileutil import copy_asset

logger = logging.getLogger(__name__)

# The one script that reads TeX, and its fonts: 1.6 of the package's 35 MB.
MATHJAX = {"tex-mml-chtml.js": "", "output/chtml/fonts/woff-v2": "output/chtml/fonts/woff-v2"}


def copy_mathjax(app: Sphinx) -> None:
    """Let the pages find MathJax beside them: they load nothing from elsewhere."""
    target = app.outdir / "_static" / "mathjax"
    with as_file(files("mathjax") / "static" / "mathjax" / "es5") as source:
        for part, folder in MATHJAX.items():
            (target / folder).mkdir(parents=True, exist_ok=True)
            copy_asset(source / part, target / folder)


def skip_field(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out what a NamedTuple says of its fields: "Alias for field number 0"."""
    return True if (getattr(member, "__doc__", "") or "").startswith("Alias for field") else None


def find_elsewhere(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element
) -> Element | None:
    """Link a bare name, as docstrings use it, to the one object of ours that has it."""
    bare = node["reftarget"]
    if node.get("refdomain") != "py" or "." in bare:
        return None
    python = env.get_domain("py")
    found = {name for name, *_ in python.get_objects() if name.endswith(f".{bare}")}
    if len(found) != 1:
        return None
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", found.pop(), node, content)


class LabFigure(SphinxDirective):
    """`{lab-figure} NAME`: show a lab's figure in a chapter too, with its number and caption."""

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
            doctree = self.env.get_doctree(lab)
            figure = next(f for f in doctree.findall(nodes.figure) if name in f["ids"]).deepcopy()
            number = self.env.toc_fignumbers[lab]["figure"][name]
            address = f"{self.app.builder.get_relative_uri(here, lab)}#{name}"
            text = f"Fig. {'.'.join(map(str, number))}"
            image, caption = (next(figure.findall(kind)) for kind in (nodes.image, nodes.caption))
            link = nodes.reference("", text, refuri=address, internal=True)
            caption.insert(0, [link, nodes.Text(", in the lab. ")])
            figure.children = [image, caption]  # without the output's other formats
            place.replace_self(figure)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", copy_mathjax)
    app.connect("autodoc-skip-member", skip_field)
    app.connect("missing-reference", find_elsewhere)
    app.add_directive("lab-figure", LabFigure)
    app.add_post_transform(ShowLabFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
