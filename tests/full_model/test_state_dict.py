"""A model in full, whatever wraps it: saved, loaded elsewhere, and its gradients."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from minidist import full_gradients, full_state_dict, launch, load_full_state_dict
from tests.support.models import Net, loss, right_gradients, units, wrappings
from tests.support.training import far

State = dict[str, Any]


def difference(got: State, want: State, tolerance: float = 0) -> str:
    """As `far`, in one order, and of plain tensors; "" if none."""
    if list(got) != list(want):
        return f"names {list(got)} instead of {list(want)}"
    for name, value in got.items():
        if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor:
            return f"{name}: a {type(value).__name__}"
    return far(got, want, tolerance)


# ---- the state ----


def look() -> None:
    for name, wrap in wrappings(dist.get_world_size()).items():
        model = wrap(Net(dist.get_rank()))
        state = full_state_dict(model)
        want = Net(0).state_dict() | {"_extra_state": dist.get_rank()}
        assert difference(state, want) == "", name
        assert state["embed.weight"] is state["head.weight"], "not tied"
        with torch.no_grad():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()  # it is a copy
        assert difference(full_state_dict(model), want) == "", name


def save(step: int) -> dict[str, State]:
    """After a step of training."""
    found = {}
    for name, wrap in wrappings(dist.get_world_size()).items():
        model = wrap(Net(dist.get_rank()))
        loss(model, dist.get_rank(), step).backward()
        bare = getattr(model, "module", model)
        held = getattr(bare, "zero", None) or [torch.optim.SGD(bare.parameters(), 1e-3)]
        held[0].step()
        found[name] = full_state_dict(model)
    return found


def load(states: dict[str, State]) -> None:
    """And see that its gradients are those of one process, of what was loaded."""
    for index, (name, wrap) in enumerate(wrappings(dist.get_world_size()).items()):
        model = wrap(Net(7))
        state = list(states.values())[(index + 5) % len(states)]
        as_torchs_ddp = {f"module.{each}": value for each, value in state.items()}
        load_full_state_dict(model, as_torchs_ddp if index % 2 else state)
        assert difference(full_state_dict(model), state) == "", name
        assert set(full_gradients(model).values()) == {None}, "gradients before backward"
        loss(model, dist.get_rank()).backward()
        want = right_gradients(dist.get_world_size(), state=state)
        if name == "bare":
            want = {each: parameter.grad for each, parameter in model.named_parameters()}
        for _ in range(2):  # the first one changes nothing
            tolerance = 1e-4 if name == "mixed" else 1e-12
            found = full_gradients(model)
            assert difference(found, want, tolerance) == "", name
            for gradient in filter(torch.is_tensor, found.values()):
                gradient.zero_()  # it is a copy


@pytest.mark.claim("E9")
def test_what_every_wrapper_saves_on_four_ranks_loads_on_three_and_in_one_process() -> None:
    states = launch(lambda: (look(), save(1))[1], 4)[0]
    alone = Net(0)
    optimizer = torch.optim.SGD(alone.parameters(), 1e-3)
    for name, gradient in right_gradients(4, 1).items():
        alone.get_parameter(name).grad = gradient
    optimizer.step()
    for name, state in states.items():
        one = Net(9)
        one.load_state_dict(state)
        if name not in ("bare", "mixed"):  # nobody averages there; other numbers
            assert difference(one.state_dict(), alone.state_dict(), 1e-12) == "", name
    launch(load, 3, states)


# ---- what does not fit ----


# case → what rank 2 has in its state, and what all ranks say
WRONG: dict[str, tuple[State, str]] = {
    "blocks.1.up.bias": ({}, "expected (3,) torch.float64, got nothing"),
    "_extra_state": ({}, "expected type int, got nothing"),
    "late": ({"late": torch.ones(2)}, "expected nothing, got it"),
    "embed.weight": (
        {"embed.weight": torch.ones(5, 7) * 1j},
        "expected (7, 5) torch.float64, got (5, 7) torch.complex64",
    ),
    "tiny": ({"tiny": [1.0]}, "expected () torch.float64, got type list"),
    "seen": ({"seen": torch.tensor(3.5)}, "expected () torch.int64, got () torch.float32"),
    "unused": (
        {"unused": torch.ones(8).double()},
        "expected (4, 2) torch.float64, got (8,) torch.float64",
    ),
}
SHARED = ["torch's ddp", "zero 2", "units", "hybrid"]


def test_what_does_not_fit_on_one_rank_is_refused_by_all_before_anything_changes() -> None:
    def run() -> list[str]:
        said = []
        for name in SHARED:
            model = wrappings(4)[name](Net(0))
            for what, (spoilt, _) in WRONG.items():
                state = Net(5).state_dict()
                if dist.get_rank() == 2:
                    state.pop(what, None)
                    state.update(spoilt)
                with pytest.raises(ValueError, match="load_full_state_dict") as caught:
                    load_full_state_dict(model, state)
                said.append(str(caught.value))
            want = Net(0).state_dict() | {"_extra_state": 0}
            assert difference(full_state_dict(model), want) == "", name
        return said

    said = [f"rank 2: load_full_state_dict: '{what}': {text}" for what, (_, text) in WRONG.items()]
    assert launch(run, 4) == [said * len(SHARED)] * 4


def test_without_ranks_a_bare_module_is_saved_loaded_and_checked() -> None:
    net = Net(3)
    load_full_state_dict(net, full_state_dict(Net(0)))
    assert difference(full_state_dict(net), Net(0).state_dict()) == ""
    loss(net, 0).backward()
    assert difference(full_gradients(net), right_gradients(1)) == ""


# ---- some more, on two ranks ----


def of_another_dtype() -> None:
    state = Net(0).float().state_dict()
    unlike = ("seen", "_extra_state")
    want = {name: value if name in unlike else value.double() for name, value in state.items()}
    for name in ("ddp", "zero 2", "units"):
        model = wrappings(2)[name](Net(3))
        load_full_state_dict(model, state)
        assert difference(full_state_dict(model), want) == "", name


def not_averaged_yet() -> None:
    model = units(Net(0))
    model.set_requires_gradient_sync(False)
    loss(model, dist.get_rank()).backward()
    assert set(full_gradients(model).values()) == {None}, "some before they are averaged"
    model.set_requires_gradient_sync(True)
    loss(model, dist.get_rank(), 1).backward()
    first, second = right_gradients(2), right_gradients(2, 1)
    want = {each: None if g is None else g + second[each] for each, g in first.items()}
    assert difference(full_gradients(model), want, 1e-12) == ""


def test_dtypes_and_accumulation() -> None:
    launch(lambda: [of_another_dtype(), not_averaged_yet()], 2)
