"""Training steps as lists of work: by hand, and by the simplest bounds."""

from itertools import product

from minidist.schedule.buckets import assign
from minidist.schedule.lanes import busy, end, spans
from minidist.schedule.steps import COMPUTE, NETWORK, Unit, bucketed, sharded

BLOCK = Unit(forward=3.0, backward=6.0, gather=2.0, reduce=4.0)
ROOT = Unit(forward=1.0, backward=2.0, gather=5.0, reduce=7.0)


def lanes(works: list) -> dict[str, list[tuple[str, float, float]]]:
    found = spans(works)
    return {
        lane: [(f"{s.kind} {s.text}".strip(), s.start, s.end) for s in found if s.lane == lane]
        for lane in (COMPUTE, NETWORK)
    }


def test_buckets_leave_in_turn_as_soon_as_they_are_full() -> None:
    works = bucketed([20.0, 6.0, 4.0], [[2], [1], [0]], [3.0, 3.0, 1.0])
    assert lanes(works)[NETWORK] == [
        ("all-reduce 1", 4.0, 7.0),
        ("all-reduce 2", 7.0, 10.0),
        ("all-reduce 3", 20.0, 21.0),
    ]
    assert busy(spans(works), COMPUTE) == 20.0


def test_buckets_that_wait_leave_after_backward() -> None:
    works = bucketed([10.0, 6.0, 4.0], [[2], [1], [0]], [3.0, 3.0, 1.0], "all-reduce", False)
    assert [start for _, start, _ in lanes(works)[NETWORK]] == [10.0, 13.0, 16.0]


def test_a_bucket_that_waits_for_a_late_gradient_holds_up_those_behind_it() -> None:
    works = bucketed([10.0, 2.0, 4.0], [[2, 0], [1]], [1.0, 1.0])
    assert [start for _, start, _ in lanes(works)[NETWORK]] == [10.0, 11.0]
    assert busy(spans(works), COMPUTE) == 10.0


def test_a_backward_without_buckets_only_computes() -> None:
    assert end(spans(bucketed([3.0, 2.0], [], []))) == 3.0


def test_fsdp_without_prefetch_computes_and_gathers_in_turn() -> None:
    works = sharded(None, [BLOCK, BLOCK], [0, 0])
    assert lanes(works) == {
        COMPUTE: [
            ("forward 0", 2, 5), ("forward 1", 7, 10), ("backward 1", 12, 18),
            ("backward 0", 24, 30),
        ],
        NETWORK: [
            ("all-gather 0", 0, 2), ("all-gather 1", 5, 7), ("all-gather 1", 10, 12),
            ("reduce-scatter 1", 18, 22), ("all-gather 0", 22, 24), ("reduce-scatter 0", 30, 34),
        ],
    }  # fmt: skip


def test_fsdp_gathers_one_unit_ahead_and_the_root_first() -> None:
    works = sharded(ROOT, [BLOCK, BLOCK], [1, 1])
    assert lanes(works) == {
        COMPUTE: [
            ("forward 0", 7, 10), ("forward 1", 10, 13), ("forward root", 13, 14),
            ("backward root", 14, 16), ("backward 1", 16, 22), ("backward 0", 22, 28),
        ],
        NETWORK: [
            ("all-gather root", 0, 5), ("all-gather 0", 5, 7), ("all-gather 1", 7, 9),
            ("all-gather 1", 14, 16), ("all-gather 0", 16, 18), ("reduce-scatter 1", 22, 26),
            ("reduce-scatter 0", 28, 32), ("reduce-scatter root", 32, 39),
        ],
    }  # fmt: skip


def test_weights_that_are_kept_are_gathered_once() -> None:
    works = sharded(ROOT, [BLOCK, BLOCK, BLOCK], [1, 1], keep=True)
    kinds = [work.kind for work in works if work.lane == NETWORK]
    assert kinds == ["all-gather"] * 4 + ["reduce-scatter"] * 4


def test_hybrid_sharding_all_reduces_each_shard_between_nodes() -> None:
    unit = Unit(3.0, 6.0, 2.0, 4.0, 5.0)
    works = sharded(unit, [unit, unit], [1, 1])
    found = spans(works)
    for place, work in enumerate(works):
        if work.kind == "all-reduce":
            reduced = [found[other] for other in work.after]
            assert [span.kind for span in reduced] == ["reduce-scatter"]
            assert found[place].start >= reduced[0].end
    assert sum(work.kind == "all-reduce" for work in works) == 3


def test_a_step_takes_at_least_its_lanes_and_at_most_their_sum() -> None:
    wrong = []
    for count, keep, ahead in product((1, 2, 5), (False, True), (0, 1, 2, 5)):
        found = spans(sharded(ROOT, [BLOCK] * count, [ahead, ahead], keep))
        alone = [busy(found, lane) for lane in (COMPUTE, NETWORK)]
        right = [count * 9.0 + 3.0, count * ((1 if keep else 2) * 2.0 + 4.0) + 12.0]
        if alone != right or not max(alone) <= end(found) <= sum(alone):
            wrong.append(f"{count} units, {keep=}, {ahead=}: {alone} of {right}, ends {end(found)}")
    assert not wrong, "\n".join(wrong)


def test_more_units_ahead_are_never_slower() -> None:
    took = [end(spans(sharded(ROOT, [BLOCK] * 4, [ahead, ahead]))) for ahead in range(5)]
    assert took == sorted(took, reverse=True)


def test_buckets_are_those_of_ddp() -> None:
    assert assign([4, 4, 4, 4], 4, 8) == [[3], [2, 1], [0]]
    assert assign([9], 4, 8) == [[0]]
    assert assign([1, 100, 1], 4, 8) == [[2, 1], [0]]
