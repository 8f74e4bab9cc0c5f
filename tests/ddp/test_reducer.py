"""The reducer by itself, on one rank of several, without any other."""

import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from minidist.parallel.ddp.reducer import Reducer
from tests.support.one_bucket import Alone


class Recorder:
    """A comm that notes what is all-reduced; it changes nothing."""

    group, rank, ranks = None, 0, 2

    def __init__(self) -> None:
        self.sent: list[list[float]] = []

    def broadcast(self, tensor: torch.Tensor, *_: object) -> None:
        pass

    def all_reduce(self, tensor: torch.Tensor, op: object = None, async_op: bool = False) -> Any:
        self.sent.append(tensor.tolist())
        return Alone.Done()


def reducer(
    *sizes: int, cap: float, as_view: bool = False
) -> tuple[Reducer, list[Parameter], Recorder]:
    named = [(str(place), Parameter(torch.zeros(size))) for place, size in enumerate(sizes)]
    comm: Any = Recorder()
    made = Reducer(named, [], comm, (cap, cap), print, as_view)
    return made, [parameter for _, parameter in named], comm


def test_a_gradient_launches_every_full_bucket_that_has_waited_for_it() -> None:
    made, parameters, comm = reducer(1, 1, 1, 1, cap=1)
    for value, parameter in enumerate(parameters):
        parameter.grad = torch.tensor([2.0 * value])
    made.prepare()
    seen = []
    for place in (1, 2, 3, 0):  # the first bucket is that of 3
        made.gradient_ready(parameters[place])
        seen.append([each[0] for each in comm.sent])
    assert seen == [[], [], [3, 2, 1], [3, 2, 1, 0]], "halved, for two ranks"
    assert not made.pending


@pytest.mark.parametrize("as_view", [False, True])
def test_copied_times_the_scale_and_written_back(as_view: bool) -> None:
    made, (a, b, c, d), comm = reducer(2, 3, 2, 1, cap=math.inf, as_view=as_view)
    (bucket,) = made.buckets
    assert bucket.parameters() == [d, c, b, a]
    a.grad, b.grad = torch.tensor([2.0, 4.0]), torch.full((3,), math.nan)
    c.grad = bucket.views[c] if as_view else torch.tensor([0.0, 0.0])
    c.grad.copy_(torch.tensor([6.0, 8.0]))
    made.prepare()
    for parameter in (a, b):
        made.gradient_ready(parameter)
    made.launch_rest()
    (sent,) = comm.sent
    assert sent[:3] == [0, 3, 4], "what did not arrive counts as it is, or as 0"
    assert all(map(math.isnan, sent[3:6]))
    assert sent[6:] == [1, 2]
    assert (a.grad is bucket.views[a]) == as_view
    assert c.grad.tolist() == [6, 8], "and is left as it is"
    bucket.flat.copy_(torch.arange(8.0))
    made.finish({a, d})
    assert a.grad.tolist() == [6, 7]
    assert d.grad is not None
    assert d.grad.tolist() == [0]
    assert c.grad.tolist() == [6, 8], "no rank has used it"
    made.prepare(weight=0)
    b.grad.fill_(math.nan)
    made.launch_rest()
    assert comm.sent[1] == [0] * 8, "a rank that counts for nothing sends zeros"
    made.finish({a, b, c, d})
    assert [each.grad.tolist() for each in (a, b, c, d)] == [[0, 0], [0, 0, 0], [0, 0], [0]]  # type: ignore[union-attr]
