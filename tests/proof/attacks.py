"""Training loops that try to break DDP, ZeRO and FSDP, and how it shows when one does.

An attack is what one rank does in one step, written so that it works on a wrapped model and on bare
ones alike. Every rank trains the wrapped one together with the others, and, alone, one bare model
for each rank. Gradients must be the mean of the bare ones', weights those that this mean leads to.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

import minidist
from minidist.comm.comm import Comm
from minidist.comm.ours import Ours
from minidist.parallel.fsdp.fully_shard import FSDPModule
from tests.proof import models
from tests.proof.cases import differ, largest, trained, wrapped
from tests.proof.models import OUTPUTS, checkpointed, net, odd

WAYS = {
    "ddp": ["ddp", "ddp, views"],
    "zero": ["zero 1 on ddp", "zero 1", "zero 2"],
    "fsdp": ["fsdp", "fsdp kept"],
}
DDP, ZERO, FSDP = WAYS.values()
FORGET = ["zero 1", "zero 2"]  # after a step, the gradients; others keep them until zero_grad
KEPT = ["zero 2", "fsdp kept"]  # parameters
SMALL = 1e-4  # MiB of a bucket: each holds about a parameter
EXACT = {torch.float64: 1e-10, torch.float32: 1e-5, torch.complex64: 1e-5}
MOMENTUM = partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


def batch(rank: int, turn: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + turn)
    return torch.randn(2, 3, dtype=torch.float64, generator=generator)


def score(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.square().mean()
    return output.y.square().mean() + output.more


@dataclass
class Live:
    """A model in training, wrapped or bare, and whose turn it is."""

    model: Any
    optimizer: Any
    quiet: Callable[[], AbstractContextManager[Any]] = nullcontext
    rank: int = 0
    turn: int = 0

    def drop(self, to_none: bool = True) -> None:
        """Of units in a bare module the optimizer alone knows the shards."""
        owner = self.model if isinstance(self.model, FSDPModule) else self.optimizer
        owner.zero_grad(set_to_none=to_none)

    def batch(self, more: int = 0) -> torch.Tensor:
        return batch(self.rank, self.turn + more)

    def loss(self, more: int = 0, **options: Any) -> torch.Tensor:
        return score(self.model(self.batch(more), **options))

    # ---- steps: loss() and loss(50) are of different samples ----

    def backwards(self, quiet: Sequence[bool] = (False,)) -> None:
        """So many, in no_sync or not."""
        for micro, silent in enumerate(quiet):
            with self.quiet() if silent else nullcontext():
                self.loss(10 * micro).backward()

    def retained(self) -> None:
        value = self.loss()
        value.backward(retain_graph=True)
        value.backward()

    def two_and_two(self) -> None:
        first, second = self.loss(), self.loss(50)
        for value in (first, second) if self.turn % 2 else (second, first):
            value.backward()

    def two_in_one(self) -> None:
        (self.loss() + 2 * self.loss(50)).backward()

    def one_of_two_quiet(self, quiet_first: bool) -> None:
        with self.quiet() if quiet_first else nullcontext():
            first = self.loss()
        with nullcontext() if quiet_first else self.quiet():
            second = self.loss(50)
        (first + second).backward()

    def one_of_two_halves_quiet(self) -> None:
        """The gradients of one half come before those of the other."""
        first = self.loss(part="a")
        with self.quiet():
            second = self.loss(50, part="b")
        (first + second).backward()

    def used_only_quietly(self) -> None:
        with self.quiet():
            self.loss().backward()
        self.loss(50, whole=False).backward()

    def asks_alone(self) -> None:
        inputs = self.batch().requires_grad_()
        value = score(self.model(inputs))
        if self.rank == 0:
            torch.autograd.grad(value, inputs, retain_graph=True)
        value.backward()

    def loss_around_it(self) -> None:
        decay = sum(p.square().sum() for p in self.model.parameters())
        (self.loss() + (self.rank + 1) * decay).backward()

    def graph_of_gradients(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a cycle, which is cut below
            self.loss().backward(create_graph=True)
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad.detach().clone()

    def whole_in_checkpoints(self) -> None:
        """The model runs again within backward, also in no_sync."""
        with self.quiet():
            score(checkpoint(self.model, self.batch(), use_reentrant=False)).backward()
        hidden = checkpoint(self.model, self.batch(50), use_reentrant=False)
        score(checkpoint(self.model, hidden, use_reentrant=False)).backward()

    def by_rank(self) -> None:
        self.loss(whole=(self.rank + self.turn) % 2 == 0).backward()

    def by_turn(self) -> None:
        self.loss(whole=self.turn % 2 == 0).backward()

    def part_of_nested(self) -> None:
        output = self.model(self.batch())
        (score(output["list"][self.turn % 2]) + output["detached"].sum()).backward()

    def changed_in_place(self) -> None:
        for context in (self.quiet(), nullcontext()):
            with context:
                output = self.model(self.batch())
                output.mul_(2)
                output[0].add_(1)
                score(output).backward()

    def hooked(self) -> None:
        output = self.model(self.batch())
        output.retain_grad()
        output.register_hook(lambda gradient: 3 * gradient)
        score(output).backward()
        assert output.grad is not None

    def with_inputs(self) -> None:
        inputs = self.batch().requires_grad_()
        score(self.model(inputs)).backward()
        assert inputs.grad is not None
        assert inputs.grad.any()

    def on_its_own_output(self) -> None:
        score(self.model(self.model(self.batch()))).backward()

    def looks_between(self) -> None:
        model, value = self.model, self.loss()
        with torch.no_grad():
            model.eval()(self.batch(90))
        value.backward()
        with torch.inference_mode():
            model(self.batch(91))
        model.train()
        self.loss(50).backward()
        model.eval()
        self.loss(60).backward()
        model.train()
        with torch.no_grad():
            model(self.batch(92))

    def looks_first(self) -> None:
        with torch.inference_mode():
            self.model(self.batch(91))
        self.loss().backward()

    def never_backward(self) -> None:
        self.model(self.batch(40))
        self.loss().backward()
        self.model(self.batch(60))

    def none_between(self) -> None:
        with self.quiet() if self.turn else nullcontext():
            self.loss().backward()
        self.drop(self.turn % 2 == 0)
        self.loss(50).backward()

    def in_a_thread(self) -> None:
        thread = threading.Thread(target=lambda: self.loss().backward())
        thread.start()
        thread.join()

    def penalty(self) -> None:
        inputs = self.batch().requires_grad_()
        output = self.model(inputs)
        (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        (score(output) + slope.square().mean()).backward()

    def autocast(self) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            output = self.model(self.batch().float())
        score(output.float()).backward()

    def in_its_dtype(self) -> None:
        score(self.model(self.batch().to(next(self.model.parameters()).dtype))).backward()

    def two_losses(self) -> None:
        one, two = self.model(self.batch())
        score(two).backward()
        score(one).backward()

    def one_of_two_losses(self) -> None:
        score(self.model(self.batch())[self.turn % 2]).backward()

    def frozen_for_a_while(self) -> None:
        self.model.b.requires_grad_(self.turn % 2 == 0)
        self.model.d.bias.requires_grad_(self.turn % 2 == 1)
        self.loss().backward()
        self.model.requires_grad_(True)

    def a_part_alone(self) -> None:
        score(self.model.a(self.batch(30))).backward()
        self.loss().backward()
        with torch.no_grad():
            self.model.b(self.model.a(self.batch()))

    def one_trains_the_other(self) -> None:
        """As a generator and a critic: two models, one loss, then another for one of them."""
        first, second = self.model.a, self.model.b
        score(second(torch.tanh(first(self.batch())))).backward()
        score(second(torch.tanh(first(self.batch(9)).detach()))).backward()

    def without_a_loss(self) -> None:
        if self.rank != 1 or self.turn == 0:
            self.loss().backward()


class Explodes(torch.autograd.Function):
    """Raises on its way back."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError


class NoGradient(torch.autograd.Function):
    """Multiplies by a weight, for which its backward returns None."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return inputs * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.saved_tensors[0], None


accumulated = partial(Live.backwards, quiet=(False, False, False))
quietly = partial(Live.backwards, quiet=(True, True, False))
loud_and_quiet = partial(Live.backwards, quiet=(True, False, True, False))


# ---- the attacks ----


@dataclass(frozen=True)
class Attack:
    """`parts`: of the bare model, those that FSDP wraps before the whole, inner ones first."""

    make: Callable[[], nn.Module]
    step: Callable[[Live], object] = Live.backwards
    parts: Callable[[Any], list[nn.Module]] = lambda net: [net.a, net.b]
    root: bool = True  # FSDP wraps the whole too
    zero: bool = True  # gradients before each step
    to_none: bool = True  # if so
    find: bool = False  # DDP looks for unused parameters
    ways: Sequence[str] = tuple(DDP + ZERO + FSDP)
    turns: int = 3
    optimizer: "partial[Optimizer]" = MOMENTUM


of_ddp, not_of_ddp = partial(Attack, ways=DDP), partial(Attack, ways=FORGET + FSDP)
searching, zeroed = partial(Attack, find=True), partial(Attack, to_none=False)
quiet_first = partial(Live.one_of_two_quiet, quiet_first=True)
quiet_last = partial(Live.one_of_two_quiet, quiet_first=False)
ATTACKS = {
    "gradients that are never zeroed": Attack(net, zero=False),
    "backward twice through a retained graph": Attack(net, Live.retained),
    "never zeroed, each rank its own branch": of_ddp(net, Live.by_rank, find=True, zero=False),
    "a quiet forward, then a loud one, one loss": of_ddp(net, quiet_first),
    "a loud forward, then a quiet one, one loss": of_ddp(net, quiet_last),
    "one loss of two halves, of which one is quiet": of_ddp(
        models.halves, Live.one_of_two_halves_quiet
    ),
    "one loss of two forwards": Attack(net, Live.two_in_one),
    "a model on its own output": Attack(net, Live.on_its_own_output),
    "three backwards": Attack(net, accumulated),
    "gradients that are zeroed in place": zeroed(net, quietly),
    "those of what is not used, zeroed in place": zeroed(net, Live.by_turn, find=True, turns=4),
    "those of what is never used, zeroed in place": zeroed(models.branches, find=True, turns=4),
    "three backwards, two quiet": Attack(net, quietly),
    "never zeroed, three backwards, two quiet": Attack(net, quietly, zero=False),
    "quiet and loud in turns": Attack(net, loud_and_quiet),
    "each rank its own branch": searching(net, Live.by_rank, turns=4),
    "each turn its own branch": searching(net, Live.by_turn, turns=4),
    "a nested output, of which a part is used": Attack(models.nested, Live.part_of_nested),
    "one rank alone asks for gradients of its inputs": of_ddp(net, Live.asks_alone),
    "a loss that also uses the parameters": of_ddp(net, Live.loss_around_it),
    "gradients with a graph": of_ddp(net, Live.graph_of_gradients),
    "the wrapper itself is checkpointed": of_ddp(net, Live.whole_in_checkpoints),
    "an output changed in place": Attack(net, Live.changed_in_place),
    "an output with hooks of its own": Attack(net, Live.hooked),
    "inputs that want gradients": Attack(net, Live.with_inputs),
    "evaluation between forward and backward": Attack(net, Live.looks_between),
    "forwards without a backward": Attack(net, Live.never_backward),
    "forwards without a backward, kept": Attack(net, Live.never_backward, ways=KEPT),
    "gradients dropped between": Attack(net, Live.none_between),
    "backward in another thread": Attack(net, Live.in_a_thread),
    "gradient penalty": Attack(net, Live.penalty, ways=DDP + ZERO),
    "gradient penalty, unused parameters looked for": of_ddp(net, Live.penalty, find=True),
    "buffers": Attack(models.norms),
    "odd parameters": Attack(odd),
    "odd parameters of several dtypes": Attack(lambda: odd(True)),
    "odd parameters, complex ones": Attack(lambda: odd(True, True), ways=DDP + ZERO),
    "keywords, containers, integers": Attack(models.by_name),
    "units that are not used": searching(
        models.branches, parts=lambda net: [net.a, net.b, net.unused, net.ignored, net.cut]
    ),
    "autocast": Attack(lambda: net().float(), Live.autocast),
    "single precision": Attack(lambda: net().float(), Live.in_its_dtype),
    "half precision": Attack(lambda: net().half(), Live.in_its_dtype),
    "brain floats": Attack(lambda: net().bfloat16(), Live.in_its_dtype),
    "attention": Attack(models.attention),
    "an LSTM": Attack(models.lstm),
    "a parametrization": Attack(models.parametrized),
    "units that write in place": searching(models.in_place),
    "units that pass on what they are given": Attack(models.passing),
    "two outputs, a loss and a backward for each": searching(models.two_heads, Live.two_losses),
    "two outputs, a loss for one": searching(models.two_heads, Live.one_of_two_losses, turns=4),
    "frozen for a while": not_of_ddp(net, Live.frozen_for_a_while, turns=4),
    "a part that is also called alone": not_of_ddp(net, Live.a_part_alone),
    "evaluation before all": Attack(net, Live.looks_first),
    "two models in one backward": not_of_ddp(net, Live.one_trains_the_other, root=False),
    "a rank without a loss": Attack(net, Live.without_a_loss, ways=FORGET),
}
for _kind, _wrap in OUTPUTS.items():
    _some = partial(Attack, ways=DDP + ZERO) if _kind == "an object" else Attack
    _net = partial(net, _wrap)
    ATTACKS |= {
        f"{_kind} as output": _some(_net),
        f"{_kind}: two forwards, then two backwards": _some(_net, Live.two_and_two),
        f"{_kind}: used only in no_sync": of_ddp(_net, Live.used_only_quietly, find=True),
        f"{_kind}: checkpoints": _some(partial(checkpointed, False, _wrap)),
        f"{_kind}: checkpoints, reentrant": _some(partial(checkpointed, True, _wrap)),
    }


# ---- each attack, wrapped and on bare modules ----


def wrap(net: nn.Module, way: str, attack: Attack, comm: Any) -> Live:
    """The model, wrapped in a way."""
    units = attack.parts(net) + [net] * attack.root if way in FSDP else []
    made = wrapped(net, way, comm, attack.optimizer, SMALL, attack.find, units)
    return Live(*made, dist.get_rank())


def differences(attack: Attack, way: str, comm: Comm) -> list[str]:
    """What is wrong with this rank's gradients and weights, in words."""
    live = wrap(models.made(attack.make), way, attack, comm)
    lead = models.made(attack.make)
    copies = [copy.deepcopy(lead) for _ in range(comm.ranks)]
    bare = [Live(net, net, rank=rank) for rank, net in enumerate(copies)]
    reference = attack.optimizer(trained(lead))
    wrong: list[str] = []
    for turn in range(attack.turns):
        for each in [live, *bare] if attack.zero else bare if way in FORGET else []:
            each.drop(attack.to_none or not attack.zero)
        for one in copies:
            one.load_state_dict(lead.state_dict() | dict(one.named_buffers()), strict=False)
        for each in [live, *bare]:
            each.turn = turn
            attack.step(each)
        means(lead, copies)
        if way not in FSDP or turn == attack.turns - 1:  # else to look at shards is to reshard
            got = minidist.full_gradients(live.model)
            want = {name: parameter.grad for name, parameter in lead.named_parameters()}
            wrong += apart(f"turn {turn}, the gradients", got, want)
        live.optimizer.step()
        reference.step()
    weights = minidist.full_state_dict(live.model)
    named = {name: p.detach() for name, p in lead.named_parameters(remove_duplicate=False)}
    return wrong + apart("the weights", weights, named)


def means(lead: nn.Module, bare: list[nn.Module]) -> None:
    """Give `lead` the means of the others' gradients: zeros for those of some, None if all are."""
    for parameter, *others in zip(*(m.parameters() for m in [lead, *bare]), strict=True):
        made = [each.grad for each in others if each.grad is not None]
        exact = torch.promote_types(parameter.dtype, torch.float64)
        total = sum(each.to(exact) for each in made) / len(bare) if made else None
        parameter.grad = None if total is None else total.to(parameter.dtype)


def apart(what: str, got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    """Where the two are not alike; each tensor is measured by its own largest element."""

    def allowed(right: torch.Tensor) -> float:
        return EXACT.get(right.dtype, 5e-2) * largest(right)

    want = {name: right for name, right in want.items() if right is None or right.numel()}
    return list(differ(what, {name: got[name] for name in want if name in got}, want, allowed))


def tried(attacks: Iterable[tuple[str, Attack, str, Comm]]) -> dict[str, list[str]]:
    """This rank's differences, by the attack's name and its way."""
    found: dict[str, list[str]] = {}
    for name, attack, way, comm in attacks:
        try:
            found[f"{name}; {way}"] = differences(attack, way, comm)
        except Exception as error:
            error.add_note(f"in the attack {name}; {way}")
            raise
    return found


def verdicts(ways: list[str]) -> dict[str, list[str]]:
    """What comes of all attacks; they go in the ways in turns."""
    chosen = []
    for number, (name, attack) in enumerate(ATTACKS.items()):
        if possible := [way for way in ways if way in attack.ways]:
            chosen.append((name, attack, possible[number % len(possible)], Ours()))
    return tried(chosen)
