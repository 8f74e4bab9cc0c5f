"""An emulated accelerator: layers take their time by waiting, and leave the core to others."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class OnDevice(nn.Module):
    """A network whose layers with parameters take `seconds` in forward, twice that in backward.

    The device works without a pause, as a GPU does when its host runs ahead: what the host needs
    for a layer is part of that layer's time. A layer's gradients are complete after its backward.
    """

    def __init__(self, net: nn.Sequential, seconds: float) -> None:
        super().__init__()
        self.net, self.seconds = net, seconds
        self._free = 0.0  # when the device has done what it was given

    def forward(self, x: Tensor) -> Tensor:
        """The network's output."""
        self._free = time.monotonic()
        for layer in self.net:
            x = layer(x)
            if any(True for _ in layer.parameters()):
                x = working(x, self.work, self.seconds)
        return x

    def work(self, seconds: float) -> None:
        """Wait until the device has done so much more."""
        self._free += seconds
        time.sleep(max(0.0, self._free - time.monotonic()))


def slow_down(layers: Iterable[nn.Module], seconds: float) -> None:
    """Let each of these layers take `seconds` longer in forward, and twice that in backward."""

    def wait(_: nn.Module, __: object, output: Tensor) -> Any:
        return working(output, time.sleep, seconds)

    for layer in layers:
        layer.register_forward_hook(wait)


def working(x: Tensor, work: Callable[[float], None], seconds: float) -> Any:
    """The same tensor, after `work(seconds)`; its gradient comes after `work(2 * seconds)`."""
    return _Working.apply(x, work, seconds)  # type: ignore[no-untyped-call]


class _Working(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, work: Callable[[float], None], seconds: float) -> Tensor:
        ctx.work, ctx.seconds = work, seconds
        work(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.work(2 * ctx.seconds)
        return gradients[0], None, None
