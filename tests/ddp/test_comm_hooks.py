"""Hooks that send gradients in 16 bits, against torch's own and against what arithmetic says."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from minidist import Counted, DistributedDataParallel, Ours, launch, timeline
from minidist.parallel.ddp import comm_hooks as hooks
from tests.support.one_bucket import Alone, Gradients, backwards, filled, net, torch_ddp

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "whole": (hooks.all_reduce, default_hooks.allreduce_hook, 1e-6),
    "fp16": (hooks.fp16_compress, default_hooks.fp16_compress_hook, 2**-9),
    "fp16 by set_buffer": (
        hooks.fp16_compress,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
        2**-9,
    ),
    "bf16": (hooks.bf16_compress, default_hooks.bf16_compress_hook, 2**-6),
}


def averaged(hook: Callable[..., Any], state: Any, gradient: torch.Tensor) -> torch.Tensor:
    """What the hook makes of this gradient of a rank."""
    bucket = filled([gradient])
    hook(state, bucket).wait()
    return bucket.buffer()


def by_every_way() -> dict[str, list[Gradients]]:
    """Gradients by torch's hook on torch's DDP, ours on ours, torch's on ours; and by none."""
    comm, found = Ours(algorithm="ring"), {}
    for name, (ours, theirs, _) in PAIRS.items():
        own, foreign = (DistributedDataParallel(net(torch.float32), comm=comm) for _ in range(2))
        own.register_comm_hook(comm, ours)
        foreign.register_comm_hook(None, theirs)
        models = torch_ddp(net(torch.float32), None, theirs), own, foreign
        found[name] = [backwards(model, 3)[-1] for model in models]
    return found | {"none": [backwards(torch_ddp(net(torch.float32)), 3)[-1]]}


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_those_of_torch_s_hooks(ranks: int) -> None:
    results = launch(by_every_way, ranks)
    (exact,) = results[0].pop("none")
    for name, ways in results[0].items():
        for way, gradients in enumerate(ways):
            for key, gradient in gradients.items():
                assert all(torch.equal(each[name][way][key], gradient) for each in results), way
                if ranks < 3:  # halves are exact, and there is but one order of two
                    assert torch.equal(gradient, ways[0][key]), (name, way, key)
                error = (gradient - exact[key]).norm() / exact[key].norm()
                assert error < PAIRS[name][2], (name, way, key)
                assert name == "whole" or error > 1e-6, "nothing was lost, so nothing was cast"


# ---- what is lost ----


@pytest.mark.claim("B10")
def test_divided_first_and_cast_then() -> None:
    def run() -> dict[str, Any]:
        comm, first = Ours(algorithm="ring"), dist.get_rank() == 0
        values = {
            "all large": 60_000.0,
            "one too large": 96_000.0 if first else 0.0,
            "all tiny": 2.0**-24,
            "one digit more": 1 + 2.0**-9,
        }
        mine = torch.tensor(list(values.values()))
        found = {}
        for name, (ours, theirs, _) in PAIRS.items():
            found[name] = dict(zip(values, averaged(ours, comm, mine).tolist(), strict=True))
            cast_first = averaged(theirs, dist.group.WORLD, mine).tolist()
            found[f"cast first, {name}"] = dict(zip(values, cast_first, strict=True))
        plain = mine.half()
        dist.all_reduce(plain)
        found["divided last"] = dict(zip(values, (plain / comm.ranks).tolist(), strict=True))
        return found

    found, infinite = launch(run, 4)[0], float("inf")
    digit = {"one digit more": 1 + 2.0**-9}
    whole = {"all large": 6e4, "one too large": 2.4e4, "all tiny": 2.0**-24} | digit
    assert found["whole"] == whole
    assert found["fp16"] == {"all large": 6e4, "one too large": 2.4e4, "all tiny": 0} | digit
    assert found["bf16"]["all large"] == pytest.approx(6e4, rel=2**-8)
    assert found["bf16"]["all tiny"] == 2.0**-24
    assert found["bf16"]["one digit more"] == 1, "bfloat16 has 8 bits"
    assert found["cast first, fp16"]["one too large"] == infinite
    assert found["cast first, fp16"]["all tiny"] == 0, "so nothing is gained by casting first"
    assert found["divided last"]["all large"] == infinite
    assert found["divided last"]["all tiny"] == 2.0**-24, "the price of dividing first"


def test_gradients_of_16_bits_are_not_cast_to_others() -> None:
    beyond = torch.tensor([2.0**20, 1.0], dtype=torch.bfloat16)  # of float16
    fine = torch.tensor([1 + 2.0**-10, 1.0], dtype=torch.float16)  # finer than bfloat16 has
    assert torch.equal(averaged(hooks.fp16_compress, Alone(), beyond), beyond)
    assert torch.equal(averaged(hooks.bf16_compress, Alone(), fine), fine)


def test_a_hook_returns_before_the_others_have_called_and_sends_half_of_the_bytes() -> None:
    def run() -> list[str]:
        comm, rank, token = Counted(Ours(algorithm="ring")), dist.get_rank(), torch.zeros(1)
        if rank == 1:  # it does not call until rank 0 has called, and gone on
            dist.recv(token, 0)
        bucket = filled([torch.full((3,), rank + 1.0)])
        handle = hooks.bf16_compress(comm, bucket)
        if rank == 0:
            assert handle.span is None, "a span before it is done"
            dist.send(token, 1)
        assert handle.wait() is bucket.buffer()
        assert bucket.buffer().tolist() == [1.5] * 3
        model = DistributedDataParallel(net(torch.float32), comm=comm)
        model.register_comm_hook(comm, hooks.fp16_compress)
        comm.clear()
        with timeline() as line:
            backwards(model, 2)
        sent = [call.nbytes for call in comm.calls if call.name == "all_reduce"]
        assert sent == [2 * 1905] * 2, "elements in one bucket"
        return [span.name for span in line.spans if span.lane == "communication"]

    assert launch(run, 2) == [["bucket 0"] * 2] * 2


# ---- hooks of the user's that cannot be ----


def done(value: object) -> Any:
    future = torch.futures.Future()  # type: ignore[var-annotated]
    future.set_result(value)
    return future


WRONG: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda state, bucket: bucket.buffer(), "None"),
    (lambda state, bucket: done(3), "3"),
    (lambda state, bucket: done(bucket.buffer()[1:]), "torch.Size([1904])"),
]


def test_hooks_that_cannot_be() -> None:
    def run() -> list[str]:
        found = []
        for hook, _ in WRONG:
            model = DistributedDataParallel(net(torch.float32))
            model.register_comm_hook(None, hook)
            with pytest.raises(ValueError, match="hook") as told:
                backwards(model, 1)
            found.append(str(told.value))
        with pytest.raises(ValueError, match="register_comm_hook: hook: there is one already"):
            model.register_comm_hook(None, max)
        return found

    for rank, found in enumerate(launch(run, 2)):
        for told, (_, got) in zip(found, WRONG, strict=True):
            assert told == (
                f"rank {rank}: communication hook <lambda>: expected a handle whose wait() returns "
                f"the 1905 elements of bucket 0, got {got}"
            )
