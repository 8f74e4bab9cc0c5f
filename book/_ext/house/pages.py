"""The pages as they were read, each loaded once."""

from functools import cache

from docutils.nodes import document
from sphinx.environment import BuildEnvironment


@cache
def doctree(env: BuildEnvironment, page: str) -> document:
    """A page with its references unresolved; who needs a part of it copies that."""
    return env.get_doctree(page)
