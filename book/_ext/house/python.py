"""The file with which a page runs Python, beside the pages: they load nothing from elsewhere."""

from pathlib import Path

from sphinx.application import Sphinx


def write(app: Sphinx) -> None:
    from course.widgets.editor import python_script

    folder = Path(app.outdir, "_static")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python.js").write_text(python_script(), "utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write)
