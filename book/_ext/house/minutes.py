"""Under the heading of each chapter: how long it takes, as the landing page has it."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


class SayMinutes(SphinxPostTransform):
    """Add a line to the chapter."""

    default_priority = 5

    def run(self, **_: object) -> None:
        """Only on pages of the path."""
        from course.pages.path import path

        for chapter in path():
            if self.env.docname == f"book/{chapter.page}":
                times = [f"{chapter.minutes} minutes to read"]
                if chapter.labs:
                    labs = " and ".join(str(lab.minutes) for lab in chapter.labs)
                    times.append(f"{labs} in the lab{'s' * (len(chapter.labs) > 1)}")
                title = next(iter(self.document.findall(nodes.title)))
                line = nodes.paragraph("", " · ".join(times), classes=["minutes"])
                title.parent.insert(title.parent.index(title) + 1, line)


def setup(app: Sphinx) -> None:
    app.add_post_transform(SayMinutes)
