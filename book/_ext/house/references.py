"""Works cited, briefly: one author of many, the conference's short name, no pages."""

import re

from pybtex.database import Entry, Person
from pybtex.plugin import register_plugin
from pybtex.style import FormattedEntry
from pybtex.style.formatting.alpha import Style
from sphinx.application import Sphinx

LEFT_OUT = {"volume", "number", "pages", "editor"}
ACRONYM = re.compile(r".*\((\{?[\w{}-]+\}?)\)")  # of a conference


class Brief(Style):
    """The default style, of entries made shorter. Labels are made of the full ones."""

    def format_entry(self, label: str, entry: Entry, bib_data: object = None) -> FormattedEntry:
        """One work."""
        return super().format_entry(label, shorter(entry), bib_data=bib_data)


def shorter(entry: Entry) -> Entry:
    """A copy of the entry without what nobody needs to find the work."""
    fields = {name: text for name, text in entry.fields.items() if name not in LEFT_OUT}
    if found := ACRONYM.fullmatch(fields.get("booktitle", "")):
        fields["booktitle"] = found[1]
    persons = {role: people for role, people in entry.persons.items() if role not in LEFT_OUT}
    if len(people := persons.get("author", [])) > 3:
        persons["author"] = [people[0], Person("others")]
    brief = Entry(entry.type, fields=fields, persons=persons)
    brief.key = entry.key
    return brief


def setup(app: Sphinx) -> None:
    register_plugin("pybtex.style.formatting", "brief", Brief)
