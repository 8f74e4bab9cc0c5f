"""What is wrong, in one sentence, by what the ranks have recorded."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minidist.diagnose.recorder import MESSAGE
from minidist.diagnose.records import WAITS, Rank, RecordedCall
from minidist.errors import name_ranks

Row = dict[int, RecordedCall]  # rank → its call of this number
Rows = dict[tuple[str, int], Row]  # group, number → the calls that belong together
MOST = 4  # clauses of a sentence on ranks that differ or wait for each other


class Verdict(NamedTuple):
    """The sentence, and what it stands on."""

    sentence: str
    blamed: Sequence[int] = ()  # ranks
    still: Sequence[int] = ()  # ranks that run: it is wrong if one of them goes on
    row: Row = {}  # the calls that differ  # noqa: RUF012


def sentence(ranks: Sequence[Rank]) -> str:
    """The verdict, as far as the records tell: the first of these that holds.

    Ranks have made different calls; one is gone or has raised; one has not come where others wait.
    """
    return judge(ranks).sentence


def judge(ranks: Sequence[Rank], now: float | None = None) -> Verdict:
    """The verdict, with how long others have waited until `now`; and who may still go on."""
    rows, dead = rows_of(ranks), _dead(ranks)
    if found := next(filter(None, map(_difference, rows.values())), None):
        return found
    blamed = Verdict(f"rank {dead[0].rank} {dead[0].now}", [dead[0].rank]) if dead else None
    if blamed and dead[0].state != "echoed" and not dead[0].waits:
        return blamed
    if absent := _absent({each.rank: each for each in ranks}, rows, now):
        return absent
    alive = [each for each in ranks if each.state in ("running", "dumped")]
    if waiting := {each.rank: each.waiting for each in alive if each.waiting and not dead}:
        call = _named(next(iter(waiting.values())), rows)
        return Verdict(f"all ranks have come to {call}, and it is not done", still=[*waiting])
    if all(each.state == "gone" for each in ranks):
        return Verdict("all ranks are gone, and none of them waited for another")
    return blamed or Verdict("no rank waits: each has left every collective that it entered")


def rows_of(ranks: Sequence[Rank]) -> Rows:
    """Group, number → the calls that belong together, in the order of the first of each."""
    rows: Rows = {}
    for each in ranks:
        for call in each.calls:
            rows.setdefault((call.group, call.number), {})[each.rank] = call
    first = {key: min(call.time for call in row.values()) for key, row in rows.items()}
    return {key: rows[key] for key in sorted(rows, key=first.__getitem__)}


def _difference(row: Row) -> Verdict | None:
    """The difference between ranks' calls; with all_to_all, tensors may differ."""
    if len({(call.name, call.tensor, call.how) for call in row.values()}) == 1:
        return None
    if len(names := sides(row, "numbered")) > 1:
        return _versus("", names, "at", row)
    [name] = names
    for given in ["how"] if "all_to_all" in name else ["tensor", "how"]:
        if len(given_by := sides(row, given)) > 1:
            return _versus(f"at {name}, ", given_by, "with", row)
    return None


def sides(row: Row, given: str) -> dict[str, list[int]]:
    """Values of the field `given`, unless empty → the ranks that have them, the fewest first."""
    found: dict[str, list[int]] = {}
    for rank in sorted(row):
        if value := getattr(row[rank], given):
            found.setdefault(value, []).append(rank)
    return dict(sorted(found.items(), key=lambda side: (len(side[1]), -side[1][0])))


def _versus(where: str, given_by: dict[str, list[int]], word: str, row: Row) -> Verdict:
    *few, (most, who) = given_by.items()
    clauses = [f"{name_ranks(r)} {'is' if len(r) == 1 else 'are'} {word} {what}" for what, r in few]
    clauses[MOST:] = [f"{len(clauses) - MOST} others differ, too"] * (len(clauses) > MOST)
    other = "the others" if len(who) > 1 else name_ranks(who)
    blamed = [rank for _, ranks in few for rank in ranks]
    return Verdict(f"{where}{', '.join(clauses)}, {other} {word} {most}", blamed, row=row)


def _dead(ranks: Sequence[Rank]) -> list[Rank]:
    """Ranks to blame, the first ones first: those that raised, vanished, or raised an echo.

    A launcher kills those who wait. If it has killed all, none of them is to blame.
    """
    kinds = ["raised", "crashed", "gone", "echoed"]
    if all(each.state == "gone" for each in ranks):
        return []
    return sorted(
        (each for each in ranks if each.state in kinds),
        key=lambda each: (kinds.index(each.state), each.waits, each.time),
    )


def _absent(ranks: Mapping[int, Rank], rows: Rows, now: float | None) -> Verdict | None:
    """Ranks that are missing in a call where others wait, and wait nowhere else; or a circle.

    A rank whose call has failed only because another one was gone has waited there.
    """
    last = {(rank, c.group): c.number for rank, each in ranks.items() for c in each.calls}
    found, waits = [], dict[int, tuple[RecordedCall, list[int]]]()  # rank → call, who is missing
    for (group, number), row in rows.items():
        call = min(row.values(), key=lambda call: call.time)
        missing = [rank for rank in call.members if rank not in row]
        behind = all(last.get((rank, group), 0) < number for rank in missing)  # or it is forgotten
        waiting = {rank: own for rank, own in row.items() if _waited(ranks[rank], own)}
        if missing and behind and waiting:
            found.append((call, missing))
            waits = {rank: (own, missing) for rank, own in waiting.items()} | waits
    if not found:
        return None
    call, missing = min(found, key=lambda each: sum(r in waits for r in each[1]) / len(each[1]))
    if not (who := [rank for rank in missing if rank not in waits]):
        return _circle(ranks, waits)
    states = {rank: ranks[rank].state for rank in who if rank in ranks}
    if states.get(who[0]) == "dumped" and ranks[who[0]].time < call.time:
        return Verdict(
            f"not yet: rank {who[0]} was dumped before others came to {_named(call, rows)}"
        )
    place = ranks[who[0]].now if who[0] in ranks else "has recorded nothing"
    subject = "it" if len(who) == 1 else f"rank {who[0]}"
    came, since = "never came", ""
    if states.get(who[0]) in ("running", "dumped"):  # it may be in a long save, and come yet
        came = "has not come" if len(who) == 1 else "have not come"
        since = f" for {now - call.time:.1f} s" if now and states[who[0]] == "running" else ""
    text = f"{name_ranks(who)} {came} to {_named(call, rows)}{since}: {subject} {place}"
    return Verdict(text, who, [rank for rank in who if states.get(rank, "running") == "running"])


def _named(call: RecordedCall, rows: Rows) -> str:
    return call.sized if len({group for group, _ in rows}) > 1 else call.numbered


def _waited(rank: Rank, call: RecordedCall) -> bool:
    if call.state == "queued" and call.name.startswith(MESSAGE.split()[0]):
        return call is rank.calls[-1]  # Gloo does not tell when it is done
    return call.state in WAITS or (call.state == "failed" and rank.state == "echoed")


def _circle(
    ranks: Mapping[int, Rank], waits: Mapping[int, tuple[RecordedCall, list[int]]]
) -> Verdict:
    """Follow who waits for whom until a rank comes again."""
    path = [min(waits)]
    while (after := waits[path[-1]][1][0]) not in path:
        path.append(after)
    circle = {rank: waits[rank] for rank in path[path.index(after) :]}
    each = "rank {} in {} of group {} for rank {}".format
    clauses = [each(r, own.numbered, own.group, who[0]) for r, (own, who) in circle.items()]
    clauses[MOST:] = ["and so on"] * (len(clauses) > MOST)
    who = sorted(circle)
    still = [rank for rank in who if ranks[rank].state == "running"]
    return Verdict(f"{name_ranks(who)} wait for each other: {', '.join(clauses)}", who, still)
