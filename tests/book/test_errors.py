"""The page of error messages: what a laptop can show is provoked, and said in the page's words.

Programs that show a mistake which is easily overlooked stand on the page. The others, from a full
disk to a name misspelt, would only lengthen it, and stand in `errors.md` beside this file.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from torch.torch_version import __version__ as torch_version

import minidist

BOOK = Path(__file__).parents[2] / "book"
PAGE = (BOOK / "errors.md").read_text()
OTHERS = Path(__file__).with_name("errors.md").read_text()
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
BEFORE, LAUNCH = PROGRAM.findall(PAGE.partition("\n## ")[0])
MORE = "import os, signal, time\nfrom datetime import timedelta\n"  # for those beside this file


def program(text: str) -> str:
    return "".join(PROGRAM.findall(text))


# The message of each entry, and what stands below it.
ENTRIES: list[tuple[str, str]] = re.findall(
    r"^### `(.+?)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL
)
ON_PAGE = [entry for entry in ENTRIES if program(entry[1])]
ELSEWHERE: list[tuple[str, str]] = re.findall(
    r"^## `(.+?)`\n(.*?)(?=^## |\Z)", OTHERS, re.MULTILINE | re.DOTALL
)
WITH_PROGRAM = [*ON_PAGE, *ELSEWHERE]
SOURCE = re.compile(r"\]\(https://(github\.com|docs\.pytorch\.org|docs\.nvidia\.com)/")
MACHINE = {"The GPU and its node", "The network"}


def contains(said: str, message: str) -> bool:
    """Whether the message was said; "…" in it is anything."""
    pieces = (r"\s+".join(map(re.escape, piece.split())) for piece in message.split("…"))
    return re.search(".*?".join(pieces), said, re.DOTALL) is not None


def test_what_counts_as_said() -> None:
    assert contains("Timed out after 2 seconds\nwaiting", "Timed out after … seconds waiting")
    assert not contains("Timed out waiting", "Timed out after … seconds waiting")


def test_there_is_an_entry_under_every_heading() -> None:
    assert len(ENTRIES) == PAGE.count("\n### ") >= 55
    assert len(WITH_PROGRAM) >= 30
    messages = [message for message, _ in ENTRIES]
    provoked = [message for message, _ in WITH_PROGRAM]
    assert len({*messages}) == len(messages)
    assert len({*provoked}) == len(provoked)
    assert {*provoked} <= {*messages}


def test_an_entry_leads_on_and_has_a_program_or_a_source() -> None:
    offenders, provoked = [], {message for message, _ in WITH_PROGRAM}
    for message, text in ENTRIES:
        pages = re.findall(r"\]\((\w+\.md)\)", text)
        if not pages or not all((BOOK / page).exists() for page in pages):
            offenders.append(f"{message}: leads to {pages}")
        if message not in provoked and not SOURCE.search(text):
            offenders.append(f"{message}: neither program nor source")
    assert not offenders, "\n".join(offenders)


def test_a_program_is_folded() -> None:
    assert PAGE.count("\n:::{dropdown} Program\n```python\n") == len(ON_PAGE)


def test_what_no_laptop_can_show_has_a_source() -> None:
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    machine = "".join(text for title, text in sections if title in MACHINE)
    reported = [message for message, text in ENTRIES if message in machine and SOURCE.search(text)]
    assert {title for title, _ in sections} >= MACHINE
    assert len(reported) >= 14


def said_by(code: str, seconds: int, capfd: pytest.CaptureFixture[str]) -> str:
    """What a program's ranks say within so many seconds, and the error that ends it."""
    names: dict[str, Any] = {}
    exec(compile(BEFORE + MORE + code, "program", "exec"), names)
    raised = []
    try:
        exec(LAUNCH.replace("timeout=15", f"timeout={seconds}"), names)
    except minidist.RankError as error:
        raised = [str(error), error.details]
    return "\n".join([*raised, *capfd.readouterr()])


def test_each_program_fails_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    offenders = []
    for number, (message, text) in enumerate(WITH_PROGRAM):
        since = re.search(r"PyTorch (2\.\d+) and later", text)
        if since and torch_version < since[1]:
            continue  # this torch does not say it
        (own := tmp_path / str(number)).mkdir()
        monkeypatch.chdir(own)
        for seconds in (15, 60):  # a busy machine needs more than the page says
            try:
                said = said_by(program(text), seconds, capfd)
            except Exception as error:
                said = f"ended by {error!r}"
            if right := contains(said, message):
                break
        if not right:
            offenders.append(f"{message}\n    {said}")
    assert not offenders, "\n".join(offenders)
