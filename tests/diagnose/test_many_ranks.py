"""Records of 16, 256 and 4,096 ranks in the groups of a mesh: the one at fault is named."""

import re
from collections import defaultdict
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from minidist.diagnose import report, table
from minidist.diagnose.records import Rank, RecordedCall

MESHES = {16: (2, 2, 4), 256: (4, 16, 4), 4096: (16, 32, 8)}  # pipeline × data × tensor
PROGRAM = ("tensor", "tensor", "pipeline", "data", "world") * 2  # the group of each call
LINES, COLUMNS = 40, 140  # of a screen
FAULTS = {
    "late": r"{odd} has not come to {call} of {size} ranks for 4\d\.0 s: "
    r"it is in load_data at train\.py:7",
    "returned": r"{odd} never came to {call} of {size} ranks: it has returned, after .* ranks",
    "raised": "{odd} raised KeyError: 3, after .*",
    "another": "{odd} is at broadcast #{number}, the others at {call}",
    "shape": r"at {call}, {odd} is with float32 \(3,\), the others with float32 \(4,\)",
}


def mesh(ranks: int) -> dict[str, dict[int, tuple[str, list[int]]]]:
    """Kind of group → rank → its group of this kind and the members."""
    _, data, tensor = MESHES[ranks]
    places = [(r // (data * tensor), r // tensor % data, r % tensor) for r in range(ranks)]
    varies = {"tensor": (0, 1), "data": (0, 2), "pipeline": (1, 2), "world": ()}
    groups = {}
    for kind, fixed in varies.items():
        members: dict[str, list[int]] = defaultdict(list)
        names = [f"{kind} {[place[axis] for axis in fixed]}" for place in places]
        for rank, name in enumerate(names):
            members[name].append(rank)
        groups[kind] = {rank: (name, members[name]) for rank, name in enumerate(names)}
    return groups


def stuck(ranks: int, odd: int, at: int, fault: str) -> list[Rank]:
    """The records once nobody can go on, because of what `odd` does at its call `at`."""
    groups, ready, clock = mesh(ranks), [*range(ranks)], 0
    calls: list[list[RecordedCall]] = [[] for _ in ready]
    rows: dict[Any, list[int]] = defaultdict(list)
    while ready:
        clock, came, ready = clock + 1, ready, []
        for rank in came:
            place = len(calls[rank])
            wrong = rank == odd and place == at
            if place == len(PROGRAM) or (wrong and fault in ("late", "returned", "raised")):
                continue
            group, members = groups[PROGRAM[place]][rank]
            number = PROGRAM[: place + 1].count(PROGRAM[place])
            name = "broadcast" if wrong and fault == "another" else "all_reduce"
            tensor = f"float32 ({3 if wrong and fault == 'shape' else 4},)"
            call = RecordedCall("entered", number, name, tensor, group, place, clock, members)
            calls[rank].append(call)
            rows[group, number].append(rank)
            if len(rows[group, number]) == len(members) and not (odd in members and place == at):
                for each in rows[group, number]:
                    calls[each][-1] = replace(calls[each][-1], state="left")
                    ready.append(each)
    found = []
    for rank, own in enumerate(calls):
        state = fault if rank == odd and fault in ("returned", "raised") else "running"
        where: Any = ("train.py", 7 if rank == odd else 9, "load_data" if rank == odd else "step")
        stack = [(*where, None)] if state == "running" else []
        found.append(Rank(rank, 0, state, "KeyError: 3", clock, own, stack))
    return found


def off_the_screen(text: str) -> list[str]:
    lines = text.splitlines()
    return [line for line in lines if len(line) > COLUMNS] + lines[LINES:]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes `report` see these records, one after the other."""

    def see(*found: list[Rank]) -> None:
        left, clock = iter(found), iter(range(100, 10_000))
        fake = SimpleNamespace(time=lambda: 50.0, monotonic=lambda: next(clock), sleep=id)
        monkeypatch.setattr(table, "look", lambda _: next(left, found[-1]))
        monkeypatch.setattr(table, "time", fake)

    return see


@pytest.mark.parametrize("ranks", MESHES)
def test_in_a_mesh_the_rank_at_fault_is_named_on_one_screen(ranks: int, looks: Any) -> None:
    odd, offenders = ranks // 3, []
    in_turn = cycle([(5, 3, MESHES[ranks][-1]), (9, 2, ranks)])  # a tensor's group, the world
    for (fault, said), (at, number, size) in zip(FAULTS.items(), in_turn, strict=False):
        looks(stuck(ranks, odd, at, fault))
        text = report("folder")
        sentence, _, first, *_ = text.splitlines()
        call = f"all_reduce #{number}"
        expected = said.format(odd=f"rank {odd}", call=call, number=number, size=size)
        right = re.fullmatch(expected, sentence) and first.startswith(f"rank {odd} ")
        others = f"ranks 0-{odd - 1}, {odd + 1}-{ranks - 1}"
        grouped = size < ranks or f"\n{others}  entered {call} " in text
        if not right or not grouped or off_the_screen(text):
            offenders.append(f"{fault} at {at}: {text}")
    assert not offenders, "\n\n".join(offenders)


@pytest.mark.parametrize("ranks", MESHES)
def test_a_rank_that_goes_on_between_two_looks_is_not_blamed(ranks: int, looks: Any) -> None:
    odd = ranks // 3
    looks(stuck(ranks, odd, 5, "late"), stuck(ranks, odd, 7, "late"))
    text = report("folder")
    assert text.startswith(f"not yet: rank {odd} went on while diagnose watched\n")
    assert not off_the_screen(text)
