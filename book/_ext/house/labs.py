"""A lab has no number of its own: it belongs to its chapter, and its figures are L7.1, L7.2, ..."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def forget_numbers(app: Sphinx, env: BuildEnvironment) -> None:
    """Take the numbers away from the labs' headings, and count their figures by themselves.

    A chapter shows some of them among its own, whose numbers so stay in order.
    """
    for page in (name for name in env.all_docs if name.startswith("notebooks/")):
        env.toc_secnumbers[page] = {}
        env.titles[page].attributes.pop("secnumber", None)
        for entry in env.tocs[page].findall(nodes.reference):
            entry.attributes.pop("secnumber", None)
        figures = env.toc_fignumbers.get(page, {}).get("figure", {})
        for count, (name, number) in enumerate(figures.items(), 1):
            figures[name] = (f"L{number[0]}", count)


def setup(app: Sphinx) -> None:
    app.connect("env-check-consistency", forget_numbers)
