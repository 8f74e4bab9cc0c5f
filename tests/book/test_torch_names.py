"""The table "Name by name": every public name of minidist beside torch's."""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

import minidist
from tools.work import ROOT

API = ROOT / "book" / "api"


class Row(NamedTuple):
    ours: str
    theirs: str
    same: str
    differs: str


def table() -> list[Row]:
    section = (API / "torch.md").read_text().partition("## Name by name")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [Row(ours, theirs, *both.rpartition(" · ")[::2]) for ours, theirs, both in rows]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


TABLE = table()
PAIRS = [(row, name) for row in TABLE for name in quoted(row.ours) if row.theirs != "–"]


def resolve(name: str) -> Any:
    name = re.sub(r"^dist\.", "torch.distributed.", name)
    return pkgutil.resolve_name(name.replace("torch.nn.Module.", "torch.nn:Module."))


def test_every_public_name_has_its_row_and_its_place_in_the_api() -> None:
    names = [name for row in TABLE for name in quoted(row.ours) if "minidist" not in name]
    assert sorted(names) == sorted(minidist.__all__)
    front = (ROOT / "book" / "api.md").read_text()
    listed = re.findall(r"`(\w+)(?: <minidist[\w.]+>)?`", front)
    assert {*minidist.__all__} <= {*listed}


def test_a_row_says_what_differs_in_a_line() -> None:
    offenders = [f"{row.ours}: {row.differs}" for row in TABLE if not 20 <= len(row.differs) <= 130]
    offenders += [
        f"{row.ours}: {row.same}" for row in TABLE if bool(row.same) != (row.theirs != "–")
    ]
    assert not offenders, "\n".join(offenders)


def test_what_is_said_to_be_the_same_is() -> None:
    offenders = [f"{name}: {each}" for row, name in PAIRS for each in not_as_said(row, name)]
    assert not offenders, "\n".join(offenders)


def not_as_said(row: Row, name: str) -> Iterator[str]:
    (address,) = quoted(row.theirs)
    ours, theirs = getattr(minidist, name), resolve(address)
    parts = re.split(r", |; ", row.same)
    if "all" in parts:
        parts += ["name", "arguments", "defaults"]
    if "it is torch's own" in parts and ours is not theirs:
        yield "it is not torch's own"
    if "name" in parts and address.rpartition(".")[2] not in quoted(row.ours):
        yield f"not the name of {address}"
    if {"arguments", "first arguments"} & {*parts}:
        here, there = positional(ours), positional(theirs)
        if "first arguments" in parts:
            there = there[: len(here)]
        if [p.name for p in here] != [p.name for p in there]:
            yield f"{[p.name for p in here]}, and torch has {[p.name for p in there]}"
        elif "defaults" in parts and [p.default for p in here] != [p.default for p in there]:
            yield f"{here}, and torch has {there}"


def positional(function: Any) -> list[inspect.Parameter]:
    every = inspect.signature(function).parameters.values()
    return [each for each in every if each.kind is each.POSITIONAL_OR_KEYWORD]


def test_a_part_that_a_row_names_is_an_argument_of_both() -> None:
    (row,) = (row for row in TABLE if quoted(row.ours) == ["fully_shard"])
    for named in quoted(row.same):
        for function in (minidist.fully_shard, torch.distributed.fsdp.fully_shard):
            assert named.removesuffix("=") in inspect.signature(function).parameters


def shown() -> Iterator[str]:
    """The names that the API pages list, one by one or in a table."""
    for page in API.glob("*.md"):
        for module, names in re.findall(r"automodule:: (\S+)\n   :members: (.+)", page.read_text()):
            yield from (f"{module}.{name.strip()}" for name in names.split(","))
    yield from re.findall(r"<(minidist\.[\w.]+)>", (ROOT / "book" / "api.md").read_text())


def test_what_the_api_shows_has_a_docstring() -> None:
    """Other names need none where they say enough."""
    offenders = [each for each in sorted({*shown()}) if not (resolve(each).__doc__ or "").strip()]
    assert not offenders, "\n".join(offenders)
