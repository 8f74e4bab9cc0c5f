"""Three small networks to train in parallel, each with something that data parallelism meets.

The MLP is as plain as can be. The convolutional net keeps running statistics in buffers, which are
no parameters. The GPT uses one matrix twice. All draw their first weights from torch's generator:
call `torch.manual_seed` before, and they come out alike.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from minidist.train.gpt import GPT

__all__ = ["GPT", "convnet", "mlp"]


def mlp(sizes: Sequence[int] = (64, 64, 10)) -> nn.Sequential:
    """Linear layers with a ReLU between each two, for inputs or images of `sizes[0]` numbers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet() -> nn.Sequential:
    """For the digits: [batch, 1, 8, 8] to [batch, 10]; two convolutions with BatchNorm, a linear.

    BatchNorm: Ioffe and Szegedy (2015), section 3. While it trains, the output for one image
    depends on the other images of the batch.
    """

    def halve(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*halve(1, 8), *halve(8, 16), nn.Flatten(), nn.Linear(16 * 2 * 2, 10))
