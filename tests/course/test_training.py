"""The networks and the data that the chapters on training use."""

import pytest
import torch
from torch.nn import functional

from course.training import data, models
from minidist.memory.activations import saved
from minidist.planner.jobs import MEDIUM

MAKE = {"mlp": models.mlp, "convnet": models.convnet, "GPT": lambda: models.GPT(11, width=32)}


def test_gpt_sees_the_past_and_all_of_it() -> None:
    torch.manual_seed(0)
    net = models.GPT(7, width=16, heads=2, context=6).double()
    ids = torch.randint(7, (2, 6))
    logits = net(ids)
    assert net.head.weight is net.token.weight
    assert logits.shape == (2, 6, 7)
    for changed in range(6):
        other = ids.clone()
        other[:, changed] = (other[:, changed] + 1) % 7
        differs = (net(other) - logits).abs().amax((0, 2)) > 1e-9
        assert differs.tolist() == [False] * changed + [True] * (6 - changed)


@pytest.mark.parametrize("name", MAKE)
def test_every_parameter_gets_a_gradient_and_the_loss_falls(name: str) -> None:
    torch.manual_seed(0)
    net, losses = MAKE[name](), []
    inputs, labels = batch(name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
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
    ids, alphabet = data.characters(text)
    assert list(alphabet) == sorted(set(text))
    assert "".join(alphabet[i] for i in ids[:5000]) == text[:5000]


def test_a_llama_s_block_has_the_matrices_of_one_and_autograd_keeps_what_the_planner_says() -> None:
    with torch.device("meta"):
        block = models.LlamaBlock(4096, 14_336, 32, 8)
    matrices = sum(each.numel() for each in block.parameters() if each.ndim > 1)
    assert matrices == MEDIUM.largest_unit - 2 * MEDIUM.width
    width, hidden, shared, tokens = 64, 224, 16, 50
    small = models.LlamaBlock(width, hidden, 4, 1).bfloat16()
    x = torch.randn(1, tokens, width, dtype=torch.bfloat16, requires_grad=True)
    kept = saved(lambda: small(x), small.parameters())
    assert kept / tokens == pytest.approx(2 * (6 * width + 2 * shared + 4 * hidden), rel=0.02)
