"""Hooks that send gradients in 16 bits, against torch's own and against what arithmetic says."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import minidist
from minidist import launch
from minidist.comm.comm import Counted, Ours
from minidist.parallel.ddp import comm_hooks as hooks
from minidist.profiler.timeline import timeline
from tests.ddp.one_bucket import (
    Alone,
    Gradients,
    OneBucket,
    averaged,
    backwards,
    net,
    torch_ddp,
)

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "whole": (hooks.all_reduce, default_hooks.allreduce_hook, 1e-6),
    "fp16": (hooks.fp16_compress, default_hooks.fp16_compress_hook, 2**-9),
    "bf16": (hooks.bf16_compress, default_hooks.bf16_compress_hook, 2**-6),
}


def last_of_three(model: torch.nn.Module) -> Gradients:
    return backwards(model, 3)[-1]


def by_every_way() -> dict[str, dict[str, Gradients]]:
    """Gradients by torch's hook on torch's DDP, ours on ours, torch's on ours."""
    found: dict[str, dict[str, Gradients]] = {}
    for name, (ours, theirs, _) in PAIRS.items():
        comm = Ours(algorithm="ring")
        on_ours, foreign = (
            minidist.DistributedDataParallel(net(torch.float32), comm=comm) for _ in range(2)
        )
        on_ours.register_comm_hook(comm, ours)
        foreign.register_comm_hook(None, theirs)
        found[name] = {
            "theirs": last_of_three(torch_ddp(net(torch.float32), None, theirs)),
            "ours on ours": last_of_three(on_ours),
            "theirs on ours": last_of_three(foreign),
        }
    found["none"] = {"theirs": last_of_three(torch_ddp(net(torch.float32)))}
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_those_of_torch_s_hooks(ranks: int) -> None:
    results = launch(by_every_way, ranks)
    for name, (_, _, tolerance) in PAIRS.items():
        exact = results[0]["none"]["theirs"]
        for way, gradients in results[0][name].items():
            assert all(each[name][way].keys() == exact.keys() for each in results)
            for key, gradient in gradients.items():
                assert all(torch.equal(each[name][way][key], gradient) for each in results), way
                theirs = results[0][name]["theirs"][key]
                if ranks < 3:  # halves are exact, and there is but one order of two
                    assert torch.equal(gradient, theirs), (name, way, key)
                error = (gradient - exact[key]).norm() / exact[key].norm()
                assert error < tolerance, (name, way, key)
                assert name == "whole" or error > 1e-6, "nothing was lost, so nothing was cast"


# ---- bytes ----


def sent() -> dict[str, int]:
    comm, found = Counted(Ours(algorithm="ring")), {}
    for name, (hook, _, _) in PAIRS.items():
        for dtype in (torch.float32, torch.float64, torch.float16):
            comm.clear()
            averaged(hook, comm, torch.ones(5, 6, dtype=dtype), torch.ones(18, dtype=dtype))
            found[f"{name} of {dtype}"] = comm.bytes_sent
            found[f"messages of {name} of {dtype}"] = comm.messages_sent
            assert [(call.name, call.nbytes) for call in comm.calls] == [
                ("all_reduce", 48 * (dtype.itemsize if name == "whole" else 2))
            ]
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_on_the_wire_are_halved(ranks: int) -> None:
    for found in launch(sent, ranks):
        for dtype in (torch.float32, torch.float64, torch.float16):
            whole = found[f"whole of {dtype}"]
            assert whole == 2 * (ranks - 1) * 48 * dtype.itemsize / ranks
            for name in ("fp16", "bf16"):
                assert found[f"{name} of {dtype}"] * dtype.itemsize == 2 * whole
                messages = found[f"messages of {name} of {dtype}"]
                assert messages == found[f"messages of whole of {dtype}"] == 2 * (ranks - 1)


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
            found[name] = dict(zip(values, averaged(ours, comm, mine)[0].tolist(), strict=True))
            cast_first = OneBucket([mine])
            theirs(dist.group.WORLD, cast_first).wait()
            found[f"cast first, {name}"] = dict(
                zip(values, cast_first.buffer().tolist(), strict=True)
            )
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
    assert torch.equal(averaged(hooks.fp16_compress, Alone(), beyond)[0], beyond)
    assert torch.equal(averaged(hooks.bf16_compress, Alone(), fine)[0], fine)


# ---- the handle ----


def handles() -> Iterator[str]:
    """Names of what went wrong."""
    comm, rank = Ours(algorithm="ring"), dist.get_rank()
    token = torch.zeros(1)
    if rank == 1:  # it does not call until rank 0 has called, and gone on
        dist.recv(token, 0)
    bucket = OneBucket([torch.full((3,), rank + 1.0)])
    handle = hooks.bf16_compress(comm, bucket)
    if rank == 0:
        if handle.span is not None:
            yield "a span before it is done"
        dist.send(token, 1)
    for _ in range(2):
        if handle.wait() is not bucket.buffer() or bucket.buffer().tolist() != [1.5] * 3:
            yield "the result"
    span = handle.span
    if span is None or not span[0] <= span[1]:
        yield f"the span: {span}"
    for hook in (hooks.fp16_compress, hooks.bf16_compress):
        odd = OneBucket([torch.zeros(2, dtype=torch.complex64)], index=3)
        try:
            hook(comm, odd)
        except TypeError as error:
            expected = f"rank {rank}: bucket 3: expected real floating-point gradients, got "
            if str(error) != expected + "torch.complex64":
                yield str(error)
        else:
            yield "complex gradients were taken"


def test_a_hook_returns_before_the_others_have_called() -> None:
    assert launch(lambda: list(handles()), 2) == [[], []]


def test_a_bucket_that_goes_through_a_hook_is_on_the_timeline() -> None:
    def run() -> list[tuple[str, str]]:
        comm = Ours()
        model = minidist.DistributedDataParallel(net(torch.float32), comm=comm)
        model.register_comm_hook(comm, hooks.fp16_compress)
        with timeline() as line:
            backwards(model, 2)
        return [(span.lane, span.name) for span in line.spans]

    for spans in launch(run, 2):
        assert spans.count(("communication", "bucket 0")) == 2
        assert spans.count(("compute", "backward")) == 2


# ---- hooks of the user's that cannot be ----


def done(value: object) -> Any:
    future = torch.futures.Future()  # type: ignore[var-annotated]
    future.set_result(value)
    return future


WRONG: list[tuple[Callable[[Any, Any], Any], str]] = [
    (
        lambda state, bucket: bucket.buffer(),
        "TypeError: {}: expected something with wait(), such as a torch.futures.Future, got a ",
    ),
    (
        lambda state, bucket: done(3),
        "TypeError: {}: expected wait() to return the reduced buffer, got a int",
    ),
    (
        lambda state, bucket: done(bucket.buffer()[1:]),
        "ValueError: {}: expected 1905 elements for bucket 0, got 1904",
    ),
]


def test_hooks_that_cannot_be() -> None:
    def says(call: Callable[[], object]) -> str:
        with pytest.raises((TypeError, ValueError)) as told:
            call()
        return f"{type(told.value).__name__}: {told.value}"

    def run() -> list[str]:
        found = []
        for hook, _ in WRONG:
            model = minidist.DistributedDataParallel(net(torch.float32))
            model.register_comm_hook(None, hook)
            found.append(says(lambda model=model: backwards(model, 1)))
        found.append(says(lambda: model.register_comm_hook(None, max)))
        fresh = minidist.DistributedDataParallel(net(torch.float32))
        return [*found, says(lambda: fresh.register_comm_hook(None, "no function"))]  # type: ignore[arg-type]

    for rank, (*found, second, no_function) in enumerate(launch(run, 2)):
        for told, (_, expected) in zip(found, WRONG, strict=True):
            where = f"rank {rank}: communication hook <lambda>"
            assert told.startswith(expected.format(where)), told
        assert second.startswith(f"ValueError: rank {rank}: register_comm_hook: hook: there is one")
        assert "expected a function of state and bucket, got 'no function'" in no_function
