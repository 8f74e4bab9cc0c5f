"""The graders of the lab inside a layer: mistakes get a diagnosis."""

from typing import Any

import torch
from torch import Tensor

from course.chapters.inside import exercises as grade
from course.pages.price import ask
from from_scratch.context import merge as right
from tests.course.verdicts import diagnosed, reader
from tests.support.by_hand import inside as hand


def test_what_is_right_is_right() -> None:
    assert grade.split(hand.ends())
    assert grade.merge(right)
    assert grade.seeds(lambda use, groups, size: torch.tensor(grade.BY[use](groups, size)) + 3)


# ---- by hand, before a knob is turned ----


def naive(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> Any:
    a, b = lse.exp(), more_lse.exp()
    return (a * out + b * more) / (a + b), (a + b).log()


def in_place(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> Any:
    merged, both = right(out, lse, more, more_lse)
    return out.copy_(merged), both


def by_max(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> Any:
    """The larger one from outside, which is not finite if there are -inf in both."""
    top = torch.maximum(lse, more_lse)
    return right(out, lse, more, more_lse)[0], top


def by_keys(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> Any:
    """As if the blocks had one key and seven, as in the second case."""
    return (out + 7 * more) / 8, torch.logaddexp(lse, more_lse)


def shifted(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> Any:
    """By the first block's lse, which may be -inf or far below."""
    share = (more_lse - lse).exp()
    return (out + share * more) / (1 + share), lse + (1 + share).log()


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.split] = rows("""
mistake | hand.ends(reduce=(hand.as_it_is, hand.as_it_is)) | summand alone: reduce must add up
mistake | hand.ends(copy=(hand.summed, hand.summed)) | 3 times too large: all ranks have the same
mistake | hand.ends(reduce=(hand.averaged, hand.as_it_is)) | mean of the ranks' summands
mistake | hand.ends(reduce=(hand.summed, hand.summed)) | of its columns of A is 3 times too
mistake | hand.ends(copy=(hand.as_it_is, hand.as_it_is)) | not that of the full block.*copy must add
mistake | hand.ends(copy=(hand.as_it_is, hand.averaged)) | the mean of what the ranks found
two ranks | hand.ends(reduce=(hand.for_two_ranks, hand.as_it_is)) | output is off by up to
nothing | hand.ends(copy=(hand.as_it_is, lambda *_: None)) | lacks what comes through the block
nothing | lambda comm: None | you return None; expected two functions
type | lambda comm: hand.ends()(comm)[0] | expected two functions of a tensor
type | hand.without_graph | what reduce returns has no graph
type | hand.ends(reduce=(hand.one_token, hand.as_it_is))
    | reduce returns \\[1, 6\\], expected a tensor
input | hand.ends(reduce=(hand.in_place, hand.as_it_is)) | reduce changes the tensor.*Sum a clone
traffic | hand.ends(copy=(hand.as_it_is, hand.twice)) | all gradients are right, but .* 1.5 times
traffic | hand.ends(reduce=(hand.row_by_row, hand.as_it_is)) | make fewer calls|times the
gathers all | hand.ends(reduce=(hand.gathered, hand.as_it_is))
    | all gradients are right, but .* times
torch's own | hand.ends(reduce=(hand.by_torch, hand.as_it_is))
    | calls torch.distributed's all_reduce
order | hand.ends(reduce=(hand.not_on_rank_0, hand.as_it_is)) | disagree|summand alone
""")
WRONG[grade.merge] = rows("""out, lse, more, more_lse
mistake | ((out + more) / 2, torch.logaddexp(lse, more_lse)) | is the mean of both
mistake | (out + more, torch.logaddexp(lse, more_lse)) | the sum of both: .* must add up to 1
mistake | (right(more, lse, out, more_lse)[0], torch.logaddexp(lse, more_lse))
    | the two weights swapped
mistake | (right(out, lse, more, more_lse)[0], lse + more_lse) | lse is not that of all keys
mistake | = by_max | lse is the larger of both
constant | (out, lse) | out is not softmax over all keys
these sizes | = naive | some thousand: out is not finite
these sizes | = shifted | some thousand: out is not finite|no query sees: out is not finite
these sizes | = by_keys | two blocks of four keys: out is not softmax
type | right(out, lse, more, more_lse)[0] | out has shape \\[5, 3\\], expected \\[2, 5, 3\\]
type | [each.tolist() for each in right(out, lse, more, more_lse)] | expected out and lse
type | right(out, lse[..., 0], more, more_lse[..., 0]) | raised RuntimeError|has shape
nothing | None | you return None; expected out and lse
input | = in_place | what you are given is changed; make new tensors
off by one | (right(out, lse, more, more_lse)[0], torch.logaddexp(lse, more_lse) + 1) | lse is not
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)


def test_a_sequence_of_131072_tokens_does_not_fit_one_gpu_and_does_64() -> None:
    tokens = 131_072
    logits = 10 * tokens * 128_256  # bf16, and two numbers in fp32
    blocks = ask("activations", "medium", gpus=64, tokens=tokens, sequence=tokens) - logits
    by_hand = 51 * 4096 * 32 * tokens  # bytes of a token and layer, per number of the width
    assert (round(by_hand / 1e9), round(logits / 1e9)) == (876, 168)
    assert by_hand < blocks < 1.01 * by_hand, "the embedding's output and the last norm on top"
    assert (round(blocks / 64e9, 1), round(logits / 64e9, 1)) == (13.7, 2.6)
