"""The page of error messages: each program on it fails, and in the words that stand above it."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch.torch_version import __version__ as torch_version

import minidist

BOOK = Path(__file__).parents[2] / "book"
PAGE = (BOOK / "errors.md").read_text()
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
BEFORE, LAUNCH = PROGRAM.findall(PAGE.partition("\n## ")[0])


class Entry(NamedTuple):
    message: str
    text: str

    @property
    def program(self) -> str:
        return "".join(PROGRAM.findall(self.text))


ENTRIES = [
    Entry(*found)
    for found in re.findall(r"^### `(.+?)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
]
WITH_PROGRAM = [entry for entry in ENTRIES if entry.program]


def contains(said: str, message: str) -> bool:
    """Whether the message was said; "…" in it is anything."""
    pieces = (r"\s+".join(map(re.escape, piece.split())) for piece in message.split("…"))
    return re.search(".*?".join(pieces), said, re.DOTALL) is not None


def test_what_counts_as_said() -> None:
    assert contains("Timed out after 2 seconds\nwaiting", "Timed out after … seconds waiting")
    assert not contains("Timed out waiting", "Timed out after … seconds waiting")


def test_there_is_an_entry_under_every_heading() -> None:
    assert len(ENTRIES) == PAGE.count("\n### ") >= 45
    assert len(WITH_PROGRAM) >= 30
    assert len({entry.message for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.message[:40])
def test_an_entry_leads_on_and_has_a_program_or_a_source(entry: Entry) -> None:
    pages = re.findall(r"\]\((\w+\.md)\)", entry.text)
    assert pages
    assert all((BOOK / page).exists() for page in pages)
    assert entry.program or re.search(r"\]\(https://(github|docs\.pytorch)", entry.text)


@pytest.mark.parametrize("entry", WITH_PROGRAM, ids=lambda entry: entry.message[:40])
def test_the_program_fails_in_these_words(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    since = re.search(r"PyTorch (2\.\d+) and later", entry.text)
    if since and torch_version < since[1]:
        pytest.skip(f"torch says it since {since[1]}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(BEFORE + entry.program, entry.message, "exec"), names)
    said = []
    try:
        exec(LAUNCH, names)
    except minidist.RankError as error:
        said += [str(error), error.details]
    out, err = capfd.readouterr()
    assert contains("\n".join([*said, out, err]), entry.message)
