"""The networks and the data that the chapters on training use."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

from course.training import data, models

MAKE = {"mlp": models.mlp, "convnet": models.convnet, "GPT": lambda: models.GPT(11, width=32)}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_the_seed_settles_the_weights(make: Callable[[], nn.Module]) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(make().parameters())

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_mlp_is_linear_layers_and_relus() -> None:
    net = models.mlp((64, 5, 7, 10))
    shapes = [tuple(p.shape) for p in net.parameters()]
    assert shapes == [(5, 64), (5,), (7, 5), (7,), (10, 7), (10,)]
    assert [type(layer) for layer in net].count(nn.ReLU) == 2
    x = torch.randn(3, 64)
    hidden = [layer for layer in net if isinstance(layer, nn.Linear)]
    want = hidden[2](hidden[1](hidden[0](x).relu()).relu())
    assert torch.equal(net(x), want)
    assert torch.equal(net(x.view(3, 1, 8, 8)), want), "images go in as they are"


def test_convnet_looks_at_the_whole_batch_only_while_it_trains() -> None:
    net = models.convnet()
    assert len(list(net.buffers())) == 6
    images = torch.randn(4, 1, 8, 8)
    assert net(images).shape == (4, 10)
    assert not torch.allclose(net(images)[:2], net(images[:2]), atol=1e-3)
    net.eval()
    assert torch.allclose(net(images)[:2], net(images[:2]), atol=1e-5)


def test_gpt_sees_the_past_and_all_of_it() -> None:
    torch.manual_seed(0)
    net = models.GPT(7, width=16, heads=2, context=6).double()
    ids = torch.randint(7, (2, 6))
    logits = net(ids)
    assert logits.shape == (2, 6, 7)
    for changed in range(6):
        other = ids.clone()
        other[:, changed] = (other[:, changed] + 1) % 7
        differs = (net(other) - logits).abs().amax((0, 2)) > 1e-9
        assert differs.tolist() == [False] * changed + [True] * (6 - changed)


def test_gpt_uses_one_matrix_twice() -> None:
    net = models.GPT(7, width=16, heads=2)
    assert net.head.weight is net.token.weight
    assert sum(p.shape == (7, 16) for p in net.parameters()) == 1
    size = 7 * 16 + 32 * 16 + 2 * 16 + 2 * (12 * 16**2 + 13 * 16)
    assert sum(p.numel() for p in net.parameters()) == size


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So small are the networks that several would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["mlp", "convnet", "GPT"])
def test_every_parameter_gets_a_gradient_and_the_loss_falls(name: str) -> None:
    torch.manual_seed(0)
    net = MAKE[name]()
    inputs, labels = batch(name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = functional.cross_entropy(net(inputs).flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "GPT":
        ids, _ = data.characters("hello world " * 11)
        ids = ids.view(4, 33)
        return ids[:, :-1], ids[:, 1:]
    images, labels = data.digits()
    return images[:64], labels[:64]


def test_digits_are_images_of_ten_kinds() -> None:
    images, labels = data.digits()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((1797,), torch.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.unique().tolist() == list(range(10))
    ink = torch.stack([images[labels == digit].mean(0) for digit in range(10)]).flatten(1)
    guess = torch.cdist(images.flatten(1), ink).argmin(1)
    assert (guess == labels).float().mean() > 0.85, "an image belongs to its label"


def test_text_is_english_and_numbered_back_and_forth() -> None:
    text = data.text()
    assert len(text) > 300_000
    assert " the " in text
    assert text == data.text()
    ids, alphabet = data.characters(text)
    assert (ids.dtype, ids.shape) == (torch.int64, (len(text),))
    assert list(alphabet) == sorted(set(text))
    assert "".join(alphabet[i] for i in ids[:5000]) == text[:5000]
    assert ids.max() == len(alphabet) - 1
