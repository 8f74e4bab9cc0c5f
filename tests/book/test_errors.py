"""The page of error messages: what a laptop can show is provoked, and said in the page's words.

A reader with the error has a program that fails, so ours stand in `errors.md` beside this file.
"""

import re
from pathlib import Path
from typing import Any

import pytest

import minidist

BOOK = Path(__file__).parents[2] / "book"
PAGE = (BOOK / "errors.md").read_text()
FAILING = Path(__file__).with_name("errors.md").read_text()
PROGRAM = r"^## `(.+?)`\n\n```python\n(.*?)```"
BEFORE = """
import os, signal, time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import minidist
"""

# The message of each entry, and what stands below it.
ENTRIES: list[tuple[str, str]] = re.findall(
    r"^### `(.+?)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL
)
PROGRAMS: list[tuple[str, str]] = re.findall(PROGRAM, FAILING, re.MULTILINE | re.DOTALL)
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
    assert len(PROGRAMS) == FAILING.count("\n## ") >= 30
    messages = [message for message, _ in ENTRIES]
    provoked = [message for message, _ in PROGRAMS]
    assert len({*messages}) == len(messages)
    assert len({*provoked}) == len(provoked)
    assert {*provoked} <= {*messages}


def test_an_entry_leads_on_and_has_a_program_or_a_source() -> None:
    offenders, provoked = [], {message for message, _ in PROGRAMS}
    for message, text in ENTRIES:
        pages = re.findall(r"\]\((\w+\.md)\)", text)
        if not pages or not all((BOOK / page).exists() for page in pages):
            offenders.append(f"{message}: leads to {pages}")
        if message not in provoked and not SOURCE.search(text):
            offenders.append(f"{message}: neither program nor source")
    assert not offenders, "\n".join(offenders)


def test_what_no_laptop_can_show_has_a_source() -> None:
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    machine = "".join(text for title, text in sections if title in MACHINE)
    reported = [message for message, text in ENTRIES if message in machine and SOURCE.search(text)]
    assert {title for title, _ in sections} >= MACHINE
    assert len(reported) >= 14


def said_by(code: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What a program's ranks say, and the error that ends it."""
    names: dict[str, Any] = {}
    exec(compile(BEFORE + code, "program", "exec"), names)
    raised = []
    try:
        minidist.launch(names["step"], 2, device="cpu", timeout=15)
    except minidist.RankError as error:
        raised = [str(error), error.details]
    return "\n".join([*raised, *capfd.readouterr()])


def test_each_program_fails_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    offenders = []
    for number, (message, code) in enumerate(PROGRAMS):
        (own := tmp_path / str(number)).mkdir()
        monkeypatch.chdir(own)
        try:
            said = said_by(code, capfd)
        except Exception as error:
            said = f"ended by {error!r}"
        if not contains(said, message):
            offenders.append(f"{message}\n    {said}")
    assert not offenders, "\n".join(offenders)
