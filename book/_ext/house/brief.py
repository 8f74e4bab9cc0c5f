"""Pages that name what there is: the first line of each docstring, or names alone."""

from sphinx.application import Sphinx

FIRST_LINES = {"book/api/source", "book/api/lesson"}
IN_FULL = {"from_scratch"}  # its table says where minidist does what the lesson leaves out
NAMES_ALONE = {"book/api/source"}  # a line for each module; its names lead to their source


def keep_first_paragraph(
    app: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]
) -> None:
    if app.env.docname in FIRST_LINES and name not in IN_FULL and "" in lines:
        del lines[lines.index("") + 1 :]
    if app.env.docname in NAMES_ALONE:
        lines[:] = [f"`{name}`: {lines[0]}"] if what == "module" else []


def drop_signature(
    app: Sphinx,
    what: str,
    name: str,
    member: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str, str] | None:
    return ("", "") if app.env.docname in NAMES_ALONE else None


def skip_members(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Of a class only itself."""
    return True if app.env.docname in FIRST_LINES and what in {"class", "exception"} else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", keep_first_paragraph, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", drop_signature)
    app.connect("autodoc-skip-member", skip_members)
