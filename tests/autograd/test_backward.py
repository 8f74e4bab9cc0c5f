"""Where a backward begins and ends: what its owner is called with, without any ranks."""

import torch
from torch import nn
from torch.nn import Parameter

from minidist.parallel.autograd.backward import Backward, on_entry


class Owner:
    """Writes down what it is called with."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def backward_begins(self, sync: bool) -> None:
        self.heard.append(f"begins, {sync}")

    def gradient_arrives(self, parameter: Parameter, sync: bool) -> None:
        self.heard.append(f"gradient, {sync}")

    def backward_ends(self, sync: bool) -> None:
        self.heard.append(f"ends, {sync}")


def test_a_backward_of_several_outputs_is_synchronized_as_their_forwards_said() -> None:
    for first, second in ((False, False), (True, True), (True, False), (False, True)):
        owner, layer = Owner(), nn.Linear(2, 2, bias=False)
        backward = Backward(owner)
        layer.weight.register_post_accumulate_grad_hook(backward.hook)
        outputs = []
        for sync in (first, second):
            outputs.append(layer(torch.ones(1, 2)))
            backward.expect(outputs[-1], sync)
        torch.cat(outputs).sum().backward()
        sync = first or second
        assert owner.heard == [f"begins, {sync}", f"gradient, {sync}", f"ends, {sync}"]


def test_backward_comes_into_a_module_by_its_own_outputs_alone() -> None:
    given = torch.ones(3, requires_grad=True) * 2
    for output in (given.view(3, 1), given.exp(), given.exp().view(3, 1)):
        calls: list[None] = []
        assert on_entry(output, given, lambda calls=calls: calls.append(None))
        output.sum().backward(retain_graph=True)
        assert calls, "not at all"
        if output._base is given:
            assert len(calls) == 1, "what made the input is outside"
    leaf = torch.ones(3, requires_grad=True)
    assert not on_entry(leaf, (), lambda: None)
