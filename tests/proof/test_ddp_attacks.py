"""Training loops that try to break DDP; each is compared with plain modules, one for each rank.

An attack is what one rank does in one step, written so that it works on the wrapper and on the bare
module alike. The gradients of the wrapper must be the mean of those of the bare ones.
"""

import copy
import io
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist import DistributedDataParallel, launch
from minidist.comm.replicas import check_replicas

RANKS = 3
SMALL = {"bucket_cap_mb": 1e-4, "first_bucket_mb": 5e-5}
VARIANTS = [
    {"sync": "overlapped"},
    {"sync": "overlapped", "gradient_as_bucket_view": True},
    {"sync": "flat", "gradient_as_bucket_view": True},
]

Step = Callable[[nn.Module, int, int], object]  # step(model, rank, turn)


def batch(rank: int, turn: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + turn)
    return torch.randn(2, 3, dtype=torch.float64, generator=generator)


class Net(nn.Module):
    """Three layers, of which the second may be left out; its output may be wrapped in something."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any] = lambda output: output) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.double()
        self.wrap = wrap

    def forward(self, inputs: torch.Tensor, whole: bool = True) -> Any:
        hidden = torch.tanh(self.a(inputs))
        return self.wrap(self.c(torch.tanh(self.b(hidden)) if whole else hidden))


@dataclass
class Output:
    y: torch.Tensor
    nothing: None = None


def plain(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.y


def loss(output: Any) -> torch.Tensor:
    return plain(output).square().mean()


def quiet(model: nn.Module) -> AbstractContextManager[None]:
    """The wrapper's no_sync."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


# ---- attacks ----


@dataclass(frozen=True)
class Attack:
    step: Step
    make: Callable[[], nn.Module] = Net
    find: bool = False
    zero: bool = True  # gradients before each step


WRAPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a tensor": lambda y: y,
    "a dataclass": Output,
    "an object": lambda y: SimpleNamespace(y=y),
}


def retained(model: nn.Module, rank: int, turn: int) -> None:
    value = loss(model(batch(rank, turn)))
    value.backward(retain_graph=True)
    value.backward()


def two_and_two(model: nn.Module, rank: int, turn: int) -> None:
    first, second = model(batch(rank, turn)), model(batch(rank, turn + 50))
    loss(first).backward()
    loss(second).backward()


def one_of_two_quiet(quiet_first: bool) -> Step:
    def step(model: nn.Module, rank: int, turn: int) -> None:
        with quiet(model) if quiet_first else nullcontext():
            first = model(batch(rank, turn))
        with nullcontext() if quiet_first else quiet(model):
            second = model(batch(rank, turn + 50))
        (loss(first) + loss(second)).backward()

    return step


def used_only_quietly(model: nn.Module, rank: int, turn: int) -> None:
    with quiet(model):
        loss(model(batch(rank, turn))).backward()
    loss(model(batch(rank, turn + 50), whole=False)).backward()


def penalty(model: nn.Module, rank: int, turn: int) -> None:
    inputs = batch(rank, turn).requires_grad_()
    output = model(inputs)
    (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
    (loss(output) + slope.square().mean()).backward()


def asks_alone(model: nn.Module, rank: int, turn: int) -> None:
    inputs = batch(rank, turn).requires_grad_()
    value = loss(model(inputs))
    if rank == 0:
        torch.autograd.grad(value, inputs, retain_graph=True)
    value.backward()


def by_rank(model: nn.Module, rank: int, turn: int) -> None:
    loss(model(batch(rank, turn), whole=(rank + turn) % 2 == 0)).backward()


def part_of_nested(model: nn.Module, rank: int, turn: int) -> None:
    output = model(batch(rank, turn))
    (output["list"][turn % 2].square().mean() + output["detached"].sum()).backward()


def nested(y: torch.Tensor) -> dict[str, Any]:
    return {"list": [y, (2 * y).sin()], "detached": y.detach(), "none": None, "n": torch.arange(2)}


def changed_in_place(model: nn.Module, rank: int, turn: int) -> None:
    for context in (quiet(model), nullcontext()):
        with context:
            output = model(batch(rank, turn))
            output.mul_(2)
            output[0].add_(1)
            loss(output).backward()


def hooked(model: nn.Module, rank: int, turn: int) -> None:
    output = model(batch(rank, turn))
    output.retain_grad()
    output.register_hook(lambda gradient: 3 * gradient)
    loss(output).backward()
    assert output.grad is not None


def on_its_own_output(model: nn.Module, rank: int, turn: int) -> None:
    loss(model(model(batch(rank, turn)))).backward()


def loss_round_it(model: nn.Module, rank: int, turn: int) -> None:
    decay = sum(p.square().sum() for p in model.parameters())
    (loss(model(batch(rank, turn))) + (rank + 1) * decay).backward()


def graph_of_gradients(model: nn.Module, rank: int, turn: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a cycle, which is cut below
        loss(model(batch(rank, turn))).backward(create_graph=True)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.detach().clone()


def looks_between(model: nn.Module, rank: int, turn: int) -> None:
    value = loss(model(batch(rank, turn)))
    with torch.no_grad():
        model(batch(rank, 90))
    with torch.inference_mode():
        model.eval()(batch(rank, 91))
    value.backward()
    loss(model.train()(batch(rank, turn + 50))).backward()
    loss(model.eval()(batch(rank, turn + 60))).backward()
    model.train()


def none_between(model: nn.Module, rank: int, turn: int) -> None:
    with quiet(model):
        loss(model(batch(rank, turn))).backward()
    model.zero_grad(set_to_none=turn % 2 == 0)
    loss(model(batch(rank, turn + 50))).backward()


def in_a_thread(model: nn.Module, rank: int, turn: int) -> None:
    thread = threading.Thread(target=lambda: loss(model(batch(rank, turn))).backward())
    thread.start()
    thread.join()


def checkpointed(model: nn.Module, rank: int, turn: int) -> None:
    """The model runs again within backward, also in no_sync."""
    with quiet(model):
        loss(checkpoint(model, batch(rank, turn), use_reentrant=False)).backward()
    hidden = checkpoint(model, batch(rank, turn + 50), use_reentrant=False)
    loss(checkpoint(model, hidden, use_reentrant=False)).backward()


class NoGradient(torch.autograd.Function):
    """Multiplies by a weight, for which its backward returns None."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return inputs * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.saved_tensors[0], None


class Undefined(Net):
    """A weight that autograd reaches, and that gets no gradient; on rank 0 alone it gets one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        inputs = NoGradient.apply(inputs, self.scale) if rank else inputs * self.scale
        return super().forward(inputs)


def mean_loss(model: nn.Module, rank: int, turn: int) -> None:
    loss(model(batch(rank, turn))).backward()


class Checkpointed(Net):
    """Activations of two layers are not kept."""

    def __init__(self, reentrant: bool, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(wrap)
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor, whole: bool = True) -> Any:
        hidden = inputs.clone().requires_grad_()
        for layer in (self.a, self.b):
            hidden = checkpoint(
                lambda x, layer=layer: torch.tanh(layer(x)), hidden, use_reentrant=self.reentrant
            )
        return self.wrap(self.c(hidden))


class InOtherOrder(nn.Module):
    """Each rank uses the layers in its own order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        for turn in range(3):
            inputs = torch.tanh(self.layers[(turn + rank) % 3](inputs))
        return inputs


class Inside(nn.Module):
    """Calls the wrapped net, or the bare one, among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(self.net(inputs).relu() + inputs)


class Odd(nn.Module):
    """Parameters without dimensions, without elements, with gaps; complex, half and strided."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.number = nn.Parameter(torch.tensor(2.0))
        self.none = nn.Parameter(torch.empty(0, 3, dtype=torch.float64))
        self.waves = nn.Parameter(torch.randn(2, 3, dtype=torch.complex64))
        self.short = nn.Parameter(torch.ones(3, dtype=torch.float16))
        self.gaps = nn.Parameter(torch.randn(4, 6)[:, :3])
        self.turned = nn.Parameter(torch.randn(4, 3).t())
        self.image = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)

    def forward(self, rank: int) -> torch.Tensor:
        squares = [self.number, self.none, self.gaps, self.turned, self.short.float()]
        total = sum((each**2).sum() for each in squares) + (self.waves.abs() ** 2).sum()
        return (rank + 1) * total + self.image(torch.full((1, 2, 3, 3), 1.0 + rank)).sum()


ATTACKS: dict[str, Attack] = {
    "backward twice through a retained graph": Attack(retained),
    "gradients that are never zeroed": Attack(mean_loss, zero=False),
    "never zeroed, each rank its own branch": Attack(by_rank, find=True, zero=False),
    "each rank its own branch": Attack(by_rank, find=True),
    "a quiet forward, then a loud one, one loss": Attack(one_of_two_quiet(True)),
    "a loud forward, then a quiet one, one loss": Attack(one_of_two_quiet(False)),
    "gradient penalty": Attack(penalty),
    "gradient penalty, unused parameters looked for": Attack(penalty, find=True),
    "one rank alone asks for gradients of its inputs": Attack(asks_alone),
    "a nested output, of which the loss uses a part": Attack(part_of_nested, lambda: Net(nested)),
    "an output changed in place": Attack(changed_in_place),
    "an output with hooks of its own": Attack(hooked),
    "a model on its own output": Attack(on_its_own_output),
    "a loss that also uses the parameters": Attack(loss_round_it),
    "gradients with a graph": Attack(graph_of_gradients),
    "evaluation between forward and backward": Attack(looks_between),
    "gradients dropped between": Attack(none_between),
    "backward in another thread": Attack(in_a_thread),
    "a module that is used twice within another": Attack(mean_loss, Inside),
    "layers in another order on each rank": Attack(
        lambda model, rank, turn: loss(model(batch(rank, turn), rank)).backward(), InOtherOrder
    ),
    "the wrapper itself is checkpointed": Attack(checkpointed),
    "a function that returns None for a weight": Attack(
        lambda model, rank, turn: loss(model(batch(rank, turn), rank)).backward(), Undefined
    ),
    "odd parameters": Attack(lambda model, rank, turn: model(rank).backward(), Odd),
}
for kind, wrap in WRAPS.items():
    make = lambda wrap=wrap: Net(wrap)  # noqa: E731
    ATTACKS[f"{kind}: two forwards, then two backwards"] = Attack(two_and_two, make)
    ATTACKS[f"{kind}: a layer used only in no_sync"] = Attack(used_only_quietly, make, find=True)
    for reentrant in (False, True):
        make = lambda wrap=wrap, reentrant=reentrant: Checkpointed(reentrant, wrap)  # noqa: E731
        name = f"{kind}: checkpoints inside, {'' if reentrant else 'not '}reentrant"
        ATTACKS[name] = Attack(mean_loss, make)


# ---- each attack, on the wrapper and on plain modules ----

Gradients = dict[str, torch.Tensor | None]


def gradients(net: nn.Module) -> Gradients:
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def differences(attack: Attack, options: dict[str, Any]) -> list[str]:
    """What is wrong with the gradients of this rank's wrapper, in words."""
    wrapped = DistributedDataParallel(
        attack.make(), find_unused_parameters=attack.find, **SMALL, **options
    )
    bare = [attack.make() for _ in range(RANKS)]
    wrong = []
    for turn in range(3):
        for model in [wrapped, *bare]:
            if attack.zero:
                model.zero_grad()
        attack.step(wrapped, dist.get_rank(), turn)
        for rank, net in enumerate(bare):
            attack.step(net, rank, turn)
        own, others = gradients(wrapped.module), [gradients(net) for net in bare]
        for name, got in own.items():
            made = [each[name] for each in others if each[name] is not None]
            if (got is None) != (not made):
                wrong.append(f"turn {turn}: {name}: {got}, expected {len(made)} ranks' mean")
            elif got is not None and not close(got, sum(made) / RANKS):
                wrong.append(f"turn {turn}: {name} is not the mean")
    return wrong


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    exact = one.dtype == torch.float64
    return torch.allclose(one, other, 1e-9 if exact else 1e-3, 1e-12 if exact else 1e-5)


@pytest.fixture(scope="module")
def verdicts() -> list[dict[str, list[str]]]:
    """Every rank's differences, by attack; all in one launch."""

    def run() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, attack in ATTACKS.items():
            found[name] = []
            for options in VARIANTS:
                try:
                    found[name] += [f"{options}: {each}" for each in differences(attack, options)]
                except Exception as error:
                    raise RuntimeError(f"{name}, {options}: {error}") from error
        return found

    return launch(run, RANKS, timeout=200)


@pytest.mark.parametrize("name", ATTACKS)
def test_gradients_are_the_mean_whatever_the_loop_does(
    name: str, verdicts: list[dict[str, list[str]]]
) -> None:
    assert [each[name] for each in verdicts] == [[]] * RANKS


# ---- what is no matter of gradients ----


class Explodes(torch.autograd.Function):
    """Raises on its way back."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError


def around() -> dict[str, object]:
    rank, said = dist.get_rank(), {}

    def refused(what: str, call: Callable[[], object]) -> None:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            call()
        said[what] = str(caught.value).split(". ")[0]

    # an exception on the way back, on all ranks; and a new wrapper, while the old one is alive
    net = Net()
    old = DistributedDataParallel(net, **SMALL)
    with pytest.raises(ZeroDivisionError):
        loss(Explodes.apply(old(batch(rank)))).backward()
    net.b.register_forward_hook(lambda module, inputs, output: Explodes.apply(output))
    with pytest.raises(ZeroDivisionError):
        loss(old(batch(rank))).backward()
    refused("after an exception", lambda: old(batch(rank)))
    net.b._forward_hooks.clear()
    net.zero_grad()
    new = DistributedDataParallel(net, **SMALL)
    loss(new(batch(rank))).backward()
    check_gradients_alike(net)
    # copies of the inner module are free of it; the wrapper is not to be copied
    stored = io.BytesIO()
    torch.save(new.module.a, stored)
    stored.seek(0)
    for free in (copy.deepcopy(new.module.a), torch.load(stored, weights_only=False)):
        if rank == 0:
            free(batch(rank)).sum().backward()
    refused("copied", lambda: copy.deepcopy(new))
    return said


def check_gradients_alike(net: nn.Module) -> None:
    flat = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    first = flat.clone()
    dist.broadcast(first, 0)
    assert torch.equal(flat, first)


def test_exceptions_copies_and_what_is_refused() -> None:
    for rank, said in enumerate(launch(around, 2)):
        step = f"rank {rank}: DistributedDataParallel is out of step with the other ranks: its "
        assert said.pop("after an exception").startswith(step + "last backward raised")
        assert said.pop("copied").startswith(f"rank {rank}: a DistributedDataParallel cannot be ")
        assert said == {}


def scaled_and_clipped() -> list[float]:
    """Loss scaling, of which rank 1 alone meets an infinite loss: all skip that step."""
    rank = dist.get_rank()
    model = DistributedDataParallel(Net(), **SMALL)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    scales = []
    for turn in range(4):
        optimizer.zero_grad()
        value = loss(model(batch(rank, turn))) * (float("inf") if (rank, turn) == (1, 2) else 1)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        check_replicas(model)
        scales.append(scaler.get_scale() / 2**10)
    return scales


def test_loss_scaling_skips_a_step_on_all_ranks() -> None:
    assert launch(scaled_and_clipped, 2) == [[2.0, 4.0, 2.0, 4.0]] * 2


def evaluated() -> list[int]:
    """BatchNorm's counters, an int64 buffer, with evaluation in every mode between."""
    rank = dist.get_rank()
    norm = nn.BatchNorm1d(3).double()
    norm.num_batches_tracked.fill_(10 * rank)
    model = DistributedDataParallel(norm, **SMALL)
    for turn in range(3):
        model(batch(rank, turn)).square().sum().backward()
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                model.eval()(batch(rank, turn))
            check_replicas(model)
        model.train()
    return norm.num_batches_tracked.tolist()


def test_buffers_of_whole_numbers_and_evaluation_in_inference_mode() -> None:
    assert launch(evaluated, 2) == [3, 3]


def joined_penalty() -> tuple[int, float]:
    """Ranks that have run out must not answer a pass that sends nothing."""
    rank = dist.get_rank()
    steps = []
    for find in (False, True):
        model = DistributedDataParallel(Net(), find_unused_parameters=find, **SMALL)
        with model.join():
            for turn in range(1 + 2 * rank):
                model.zero_grad()
                penalty(model, rank, turn)
        steps.append(model.steps)
        loss(model(batch(rank))).backward()
    return steps


def test_gradient_penalty_within_join() -> None:
    assert launch(joined_penalty, 2) == [[3, 3]] * 2


def compiled() -> list[str]:
    """A compiled net in the wrapper, and a compiled wrapper."""
    rank, wrong = dist.get_rank(), []
    want = [Net() for _ in range(2)]
    for other, net in enumerate(want):
        loss(net(batch(other))).backward()
    inner = DistributedDataParallel(torch.compile(Net(), backend="aot_eager"), **SMALL)
    outer = DistributedDataParallel(Net(), **SMALL)
    for name, model, call in (
        ("inner", inner, inner),
        ("outer", outer, torch.compile(outer, backend="eager")),
    ):
        for _ in range(3):
            model.zero_grad()
            loss(call(batch(rank))).backward()
        means = [
            (p.grad + q.grad) / 2 for p, q in zip(*(net.parameters() for net in want), strict=True)
        ]
        got = [p.grad for p in model.parameters()]
        wrong += [] if all(map(close, got, means)) else [name]
    return wrong


def test_compiled_modules() -> None:
    assert launch(compiled, 2) == [[], []]
