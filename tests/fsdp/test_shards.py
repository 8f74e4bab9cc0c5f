"""What a rank's part of a tensor does: elementwise steps as in one process; it has no norm."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim

from minidist import full_state_dict, fully_shard, launch
from tests.support.refusals import says
from tests.support.training import far, scaled_step


def net(seed: int = 0) -> nn.Sequential:
    """A net whose last layer has one row, and so has none on the last rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))


def sharded(seed: int = 0) -> Any:
    model = net(seed)
    fully_shard(model[2])
    return fully_shard(model)


def loss(model: nn.Module, part: int) -> torch.Tensor:
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(part))
    mean: torch.Tensor = model(batch).square().mean()
    return mean


class Lion(optim.Optimizer):
    """A user's own step, element by element."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"]):
            mean = self.state[p].setdefault("mean", torch.zeros_like(p))
            p.mul_(0.99).sub_((0.9 * mean + 0.1 * p.grad).sign_() * 0.01)
            mean.lerp_(p.grad, 0.01)


class ByItsNorm(Lion):
    """A user's own step, as long as the whole weight."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(p.grad * p.norm() / p.grad.norm())


ELEMENTWISE: dict[str, Callable[[Any], optim.Optimizer]] = {
    **{
        f"{name}, {how}": partial(getattr(optim, name), lr=0.01, **{how: True})
        for name in ("SGD", "Adam", "AdamW", "Adagrad")
        for how in ("foreach", "fused", "maximize")
    },
    **{
        name: partial(getattr(optim, name), lr=0.01)
        for name in ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
    },
    "momentum": partial(optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "centered": partial(optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.1),
    "Lion": Lion,
}


def test_elementwise_steps_are_those_of_one_process() -> None:
    def run() -> dict[str, str]:
        ranks, found = dist.get_world_size(), {}
        for name, kind in ELEMENTWISE.items():
            model, alone = sharded(), net()
            ours, theirs = kind(model.parameters()), kind(alone.parameters())
            for step in range(3):
                loss(model, ranks * step + dist.get_rank()).backward()
                nn.utils.clip_grad_value_(model.parameters(), 0.05)
                ours.step()
                ours.zero_grad()
                (sum(loss(alone, ranks * step + rank) for rank in range(ranks)) / ranks).backward()
                nn.utils.clip_grad_value_(alone.parameters(), 0.05)
                theirs.step()
                theirs.zero_grad()
            found[name] = far(full_state_dict(model), dict(alone.state_dict()), 1e-4)
        return {name: said for name, said in found.items() if said}

    assert launch(run, 2) == [{}] * 2


def own_gradient(p: nn.Parameter) -> Any:
    p.grad = torch.zeros_like(p)
    return p.grad


# Each would take this rank's rows for the whole; on the last rank the last has none.
PARTS: dict[str, Callable[[nn.Parameter, Any], object]] = {
    "grad.norm()": lambda p, grad: grad.norm(),
    "grad.data.norm(2)": lambda p, grad: grad.data.norm(2),
    "grad.detach().data.norm(2)": lambda p, grad: grad.detach().data.norm(2),
    "torch.norm(grad)": lambda p, grad: torch.norm(grad),
    "vector_norm": lambda p, grad: torch.linalg.vector_norm(grad.float()),
    "get_total_norm": lambda p, grad: nn.utils.get_total_norm([grad]),
    "get_total_norm, foreach": lambda p, grad: nn.utils.get_total_norm([grad], foreach=True),
    "clip_grad_norm_": lambda p, grad: nn.utils.clip_grad_norm_([p], 1.0),
    "grad.pow(2).sum()": lambda p, grad: grad.pow(2).sum(),
    "(grad * grad).sum()": lambda p, grad: (grad * grad).sum().sqrt(),
    "_foreach_mul": lambda p, grad: torch._foreach_mul([grad], 2)[0].sum(),
    "flattened and joined": lambda p, grad: torch.cat([grad.view(-1)]).dot(grad.view(-1)),
    "grad.abs().max()": lambda p, grad: grad.abs().max(),
    "isfinite().all()": lambda p, grad: grad.isfinite().all(),
    "p.norm()": lambda p, grad: p.norm(),
    "momentum.norm()": lambda p, grad: torch.zeros_like(p).lerp_(grad, 0.1).norm(),
    "momentum @ momentum.T": lambda p, grad: (m := torch.zeros_like(grad)) @ m.T,
    "p.data.std()": lambda p, grad: p.data.std(),
    "state_dict()": lambda p, grad: p.detach().cpu().mean(),
    "a gradient of one's own": lambda p, grad: own_gradient(p).sum(),
    "grad @ grad.mT": lambda p, grad: grad @ grad.mT,
    "einsum": lambda p, grad: torch.einsum("ij,kj->ik", grad, grad),
    "qr": lambda p, grad: torch.linalg.qr(p),
    "normalize": lambda p, grad: nn.functional.normalize(grad),
}


def init_by(name: str) -> Callable[[nn.Parameter, Any], object]:
    return lambda p, grad: getattr(nn.init, name)(p)


INITS = ("xavier_uniform_", "kaiming_uniform_", "orthogonal_", "normal_", "eye_")


def test_a_part_refuses_what_takes_a_whole_tensor() -> None:
    def run() -> dict[str, str]:
        model = sharded()
        loss(model, 0).backward()
        weights = [model[place].weight for place in (0, 2, 4)]
        found = {}
        with torch.no_grad():
            uses = {**PARTS, **{name: init_by(name) for name in INITS}}
            for name, use in uses.items():
                some = weights[:2] if name in INITS else weights  # nothing is done to no rows
                said = {says(partial(use, w, w.grad), RuntimeError) for w in some}
                good = "takes a whole tensor, and this rank has a part of one that minidist.fully_"
                found[name] = next((each for each in said if good not in each), "")
            for weight in weights:
                own = weight.to_local().sum() + weight.grad.to_local().norm()
                assert (type(own), type(weight.grad.to_local())) == (torch.Tensor, torch.Tensor)
                assert weight.to_local().data_ptr() == weight.data_ptr()
        return {name: said for name, said in found.items() if said}

    assert launch(run, 2) == [{}] * 2


WHOLE: dict[str, Callable[[Any], optim.Optimizer]] = {
    "Adafactor": optim.Adafactor,
    "LBFGS": optim.LBFGS,
    "Muon": lambda params: optim.Muon([p for p in params if p.ndim == 2], nesterov=False),
    "ByItsNorm": ByItsNorm,
}


def states() -> list[Any]:
    """The type of AdamW's state, and what a user's optimizer says to a norm of its own."""
    kept = []
    for kind, name in ((optim.AdamW, "exp_avg"), (Lion, "mean")):
        model: Any = sharded()
        optimizer: Any = kind(model.parameters())
        loss(model, dist.get_rank()).backward()
        optimizer.step()
        kept.append(optimizer.state[model[0].weight][name])
    return [type(kept[0]), says(kept[1].norm)]


def test_state_of_torchs_own_optimizers_is_plain_and_a_users_has_no_norm() -> None:
    for plain, refused in launch(states, 2):
        assert plain is torch.Tensor
        assert "norm" in refused


def test_optimizers_that_need_whole_tensors_are_refused_on_all_ranks() -> None:
    def run() -> None:
        rank, where = dist.get_rank(), f"RuntimeError: rank {dist.get_rank()}: "
        for name, kind in WHOLE.items():
            model, before = sharded(), full_state_dict(sharded())
            optimizer = kind(model.parameters())
            loss(model, rank).backward()
            said = says(lambda: optimizer.step(lambda: pytest.fail("called")))  # noqa: B023
            if kind is ByItsNorm:
                assert said.startswith(f"{where}norm takes a whole tensor"), said
            else:
                assert said.startswith(f"{where}{name}: expected an optimizer that treats"), said
                assert "of parameter '0.weight' of the outermost unit" in said
            assert far(full_state_dict(model), before) == "", name

    launch(run, 2)


def test_a_loss_scaler_must_ask_all_ranks() -> None:
    """The last rank's shard alone has an infinite gradient."""

    def run() -> list[Any]:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        steps = []
        for kind in (torch.amp.GradScaler, ShardedGradScaler):
            model = fully_shard(nn.Linear(4, 4))
            scaler, optimizer = kind("cpu", init_scale=8.0), optim.SGD(model.parameters(), 0.1)
            outputs = model(torch.ones(2, 4)) * torch.tensor([1, 1, 1, torch.inf])
            scaler.scale(outputs.sum()).backward()
            steps.append(partial(scaled_step, scaler, optimizer))
        return [says(steps[0]), steps[1]()]

    for rank, (said, together) in enumerate(launch(run, 2)):
        assert said.startswith(f"RuntimeError: rank {rank}: GradScaler looks only at this rank's")
        assert together == (4.0, False)


def stepped(seed: int) -> tuple[Any, optim.Optimizer]:
    model = sharded(seed)
    optimizer = optim.AdamW(model.parameters(), 0.01)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: optim.Optimizer) -> None:
    loss(model, dist.get_rank()).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_torchs_checkpoints_refuse_shards_and_load_nothing(tmp_path: Path) -> None:
    def run() -> dict[str, str]:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        warnings.simplefilter("ignore")
        model, optimizer = stepped(0)
        before = full_state_dict(model)
        weights, moments = get_state_dict(model, optimizer)
        average = [p.detach().clone() for p in model.parameters()]
        # A file of plain tensors of the shapes that rank 0 has, as an earlier minidist saved it.
        plain = {name: each.to_local() for name, each in model.state_dict().items()}
        dcp.save(plain, checkpoint_id=tmp_path / "plain")
        tries: dict[str, Callable[[], object]] = {
            "model": lambda: dcp.save(model.state_dict(), checkpoint_id=tmp_path / "a"),
            "optimizer": lambda: dcp.save(optimizer.state_dict(), checkpoint_id=tmp_path / "b"),
            "async": lambda: dcp.async_save(model.state_dict(), checkpoint_id=tmp_path / "c"),
            "get_state_dict": lambda: dcp.save({"w": weights}, checkpoint_id=tmp_path / "d"),
            "its moments": lambda: dcp.save({"m": moments}, checkpoint_id=tmp_path / "e"),
            "parameters": lambda: dcp.save({"w": model[0].weight}, checkpoint_id=tmp_path / "f"),
            "an average": lambda: dcp.save(dict(enumerate(average)), checkpoint_id=tmp_path / "g"),
            "load": lambda: dcp.load(model.state_dict(), checkpoint_id=tmp_path / "plain"),
        }
        found = {}
        for name, each in tries.items():
            try:
                made = each()
                found[name] = repr(made.exception() if hasattr(made, "exception") else made)
            except BaseException as error:  # as torch's CheckpointException is
                found[name] = str(error)
        assert far(full_state_dict(model), before) == ""
        return {n: s for n, s in found.items() if "cannot reassemble the shards of mini" not in s}

    assert launch(run, 2) == [{}] * 2


def test_each_rank_saves_and_loads_its_own_optimizer_state(tmp_path: Path) -> None:
    def run() -> str:
        rank = dist.get_rank()
        model, optimizer = stepped(0)
        kept = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / f"{rank}.pt")
        step(model, optimizer)
        right = full_state_dict(model)
        for states in (kept, torch.load(tmp_path / f"{rank}.pt", weights_only=True)):
            if states is not kept:
                every = [*states[0].values(), *states[1]["state"][0].values()]
                assert {type(each) for each in every} == {torch.Tensor}
            again, another = stepped(8)
            again.load_state_dict(states[0])
            another.load_state_dict(states[1])
            step(again, another)
            assert far(full_state_dict(again), right) == ""
        dist.barrier()
        theirs = torch.load(tmp_path / f"{1 - rank}.pt", weights_only=True)[1]
        another.load_state_dict(theirs)
        loss(again, rank).backward()
        return says(another.step)

    for rank, said in enumerate(launch(run, 2)):
        assert said.startswith(
            f"RuntimeError: rank {rank}: AdamW: expected the state of rank {rank} of 2, got that "
            f"of rank {1 - rank} of 2"
        )
