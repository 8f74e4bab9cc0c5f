"""A page for each file of tests that the ledger names, so that its rows lead to what shows them."""

import ast
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

import yaml
from sphinx.application import Sphinx

LEDGER = Path("book", "claims.yml")


def pieces(source: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each function, and of what stands before the first, which has the name ""."""
    lines = source.splitlines(keepends=True)
    starts = [(0, "")]
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            starts.append((first - 1, node.name))
    for (start, name), (end, _) in pairwise([*starts, (len(lines), "")]):
        yield name, "".join(lines[start:end]).strip("\n")


def show_tests(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """The pages beside those of the modules' sources. A handout has no tests, and no such pages."""
    root = Path(app.srcdir)
    rows = yaml.safe_load((root / LEDGER).read_text())
    tests = {each.split("::")[0] for row in rows for each in row["evidence"] if "::" in each}
    for file in sorted(file for file in tests if (root / file).exists()):
        body = [f"<h1>{escape(file)}</h1>"]
        for name, text in pieces((root / file).read_text()):
            code = app.builder.highlighter.highlight_block(text, "python")
            body.append(f'<div id="{name}">{code}</div>' if name else code)
        page = Path("_modules", file).with_suffix("").as_posix()
        yield page, {"title": file, "body": "\n".join(body)}, "page.html"


def setup(app: Sphinx) -> None:
    app.connect("html-collect-pages", show_tests)
