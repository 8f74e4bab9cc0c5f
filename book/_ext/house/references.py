"""Works cited, briefly: one author of many, the conference's short name, one address, no pages."""

import re

from pybtex.database import Entry, Person
from pybtex.plugin import register_plugin
from pybtex.style import FormattedEntry
from pybtex.style.formatting.alpha import Style
from pybtex.style.template import Node, field, href
from sphinx.application import Sphinx

LEFT_OUT = {"volume", "number", "pages", "editor"}
ACRONYM = re.compile(r".*\((\{?[\w{}-]+\}?)\)")  # of a conference
ARXIV = "https://arxiv.org/abs/"


class Brief(Style):
    """The default style, of entries made shorter. Labels are made of the full ones."""

    def format_entry(self, label: str, entry: Entry, bib_data: object = None) -> FormattedEntry:
        """One work."""
        return super().format_entry(label, shorter(entry), bib_data=bib_data)

    def format_url(self, e: Entry) -> Node:
        """The address, which says itself that it is one."""
        return href(field("url", raw=True))[field("url", raw=True)]


def shorter(entry: Entry) -> Entry:
    """A copy of the entry without what nobody needs to find the work."""
    fields = {name: text for name, text in entry.fields.items() if name not in LEFT_OUT}
    if found := ACRONYM.fullmatch(fields.get("booktitle", "")):
        fields["booktitle"] = found[1]
    if fields.get("url", "").startswith(ARXIV):  # "arXiv:2309.14509" is its address
        fields["eprint"] = fields.pop("url").removeprefix(ARXIV)
        published = fields.pop("howpublished", "").removeprefix(f"arXiv:{fields['eprint']}")
        if published:  # such as a section
            fields["howpublished"] = published.lstrip(", ").capitalize()
    persons = {role: people for role, people in entry.persons.items() if role not in LEFT_OUT}
    if len(people := persons.get("author", [])) > 3:
        persons["author"] = [people[0], Person("others")]
    brief = Entry(entry.type, fields=fields, persons=persons)
    brief.key = entry.key
    return brief


def setup(app: Sphinx) -> None:
    register_plugin("pybtex.style.formatting", "brief", Brief)
