"""A lab has no number of its own: it belongs to its chapter, and its figures count with its."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def forget_numbers(app: Sphinx, env: BuildEnvironment) -> None:
    """Take the numbers away from the labs' headings, after figures have been given theirs."""
    for page in (name for name in env.all_docs if name.startswith("notebooks/")):
        env.toc_secnumbers[page] = {}
        env.titles[page].attributes.pop("secnumber", None)
        for entry in env.tocs[page].findall(nodes.reference):
            entry.attributes.pop("secnumber", None)


def setup(app: Sphinx) -> None:
    app.connect("env-check-consistency", forget_numbers)
