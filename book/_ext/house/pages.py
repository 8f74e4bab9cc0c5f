"""The pages as they were read: in the order of the book, and each loaded once."""

from functools import cache

from docutils.nodes import document
from sphinx.environment import BuildEnvironment


def in_order(env: BuildEnvironment) -> list[str]:
    """All pages, in the order of the table of contents."""
    return below(env, env.config.root_doc)


def below(env: BuildEnvironment, page: str) -> list[str]:
    """A page and those below it."""
    parts = env.toctree_includes.get(page, [])
    return [page, *(each for part in parts for each in below(env, part))]


@cache
def doctree(env: BuildEnvironment, page: str) -> document:
    """A page with its references unresolved; who needs a part of it copies that."""
    return env.get_doctree(page)
