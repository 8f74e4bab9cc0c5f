"""The graders of the lab on FSDP: mistakes get a diagnosis."""

from typing import Any

from course.chapters.fsdp import exercises as grade
from tests.course.verdicts import diagnosed, reader, says
from tests.support.by_hand import fsdp as hand


def test_ranks_that_make_other_calls_are_found() -> None:
    says("disagree on the call.*the same calls.*grader's", grade.unit(hand.from_rank_0_only))


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.unit] = rows(r"""
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) * comm.ranks)
    | is the sum over 3 ranks, .*: divide by their number
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) / comm.ranks) | divided twice
mistake | hand.unit(scatter=lambda g, comm: g.chunk(comm.ranks)[comm.rank])
    | the gradient is still its own
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g.view(comm.ranks, -1).flip(0).flatten(),
    comm))
    | that of rank 2's weights. Rank 0 keeps part 0
mistake | hand.unit(scatter=lambda g, _: g) | shape \[12\], expected \[4\]
mistake | hand.unit(scatter=lambda *_: None) | you return None, expected a part of the gradient
traffic | hand.unit(scatter=hand.all_reduced) | is right, but .* 1.3 times
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) + 1e-3)
    | is off by up to 1.0e-03
mistake | hand.unit(gather=lambda shard, comm: shard.repeat(comm.ranks))
    | forward got are not those of all ranks
memory | hand.never_resharded | still in memory when backward begins. Reshard
memory | hand.kept_for_later | still in memory when all is over
mistake | lambda shard, forward, *_: forward(shard)
    | On rank \d of 3 forward got \[4\], expected all \[12\]
mistake | lambda shard, forward, _, comm: forward(hand.gather(shard, comm))
    | backward was never called
mistake | lambda shard, *rest: (hand.unit()(shard, *rest), shard.mul_(2))[0]
    | the shard has been changed
constant | hand.unit(scatter=lambda g, comm: hand.scatter(g * comm.ranks / 3, comm))
    | rank 0 of 5, the gradient is 1.67 times
two ranks | hand.unit(scatter=lambda g, comm: hand.scatter(g * comm.ranks / 2, comm))
    | rank 0 of 3, the gradient is 1.5 times the average
these sizes | hand.unit(gather=lambda shard, comm: hand.gather(shard[:4], comm))
    | forward got \[12\], expected all \[\d+\]
gathers all | hand.unit(scatter=hand.gathered)
    | the gradient is right, but .* 1.7 times the .*each rank's own part
traffic | hand.unit(gather=lambda shard, comm: hand.gather(shard, comm) + 0 * hand.gather(shard,
    comm))
    | is right, but .* 1.7 times
traffic | hand.unit(scatter=hand.in_halves) | make fewer calls
torch's own | hand.by_lists | torch.distributed's all_gather. Use comm
torch's own | hand.unit(scatter=hand.around_comm)
    | only .* bytes that it takes were counted.*comm's calls alone
memory | hand.copied | only .* counted. Gather before forward and again before backward
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
