"""Numbers that a page computes and says in its sentences."""

from myst_nb import glue


def say(**numbers: object) -> None:
    """Give sentences these values, for the role glue:text to quote by their names."""
    for name, value in numbers.items():
        glue(name, value, display=False)
