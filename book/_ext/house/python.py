"""What pages run of Python, as files beside them: they load nothing from elsewhere."""

from pathlib import Path

from sphinx.application import Sphinx


def write(app: Sphinx) -> None:
    from course.interactive.compiled import script
    from course.interactive.editor import python_script
    from course.interactive.page import COMPILED

    folder = Path(app.outdir, "_static")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("python.js", python_script()), (COMPILED, script())):
        (folder / name).write_text(text, "utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write)
