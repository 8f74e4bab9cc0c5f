"""The grader of the lab on ring attention, what its page says, and a long sequence by hand."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import pad

from course.chapters.sequences.problem import TOKENS, cuts, layer_ms, memory
from from_scratch.context import pieces
from minidist import launch
from minidist.planner.hardware import H100
from minidist.planner.jobs import MEDIUM
from minidist.planner.planner import ROOM
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("sequences")


def test_a_sequence_of_131072_tokens_does_not_fit_one_gpu_and_does_64() -> None:
    layers, logits = memory()
    by_hand = 51 * 4096 * 32 * TOKENS  # bytes of a token and layer, per number of the width
    assert (round(by_hand / 1e9), round(logits / 1e9)) == (876, 168)
    assert by_hand < layers < 1.01 * by_hand, "the embedding's output and the last norm on top"
    assert (round(layers / 64e9, 1), round(logits / 64e9, 1)) == (13.7, 2.6)
    state = 16 * MEDIUM.parameters
    assert (layers + logits + state) / 64 < ROOM * H100.memory < layers


def test_the_width_belongs_in_a_node_and_the_sequence_between_nodes() -> None:
    matrices, scores = layer_ms()
    (_, _, width_in, width_out), (_, _, _, ring_out) = cuts()
    assert 4 * matrices < scores
    assert ring_out < scores / 5
    assert 0.4 * (matrices + scores) < width_out < scores
    assert width_in < 0.1 * (matrices + scores)


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_a_zigzag_gives_all_ranks_as_many_pairs(ranks: int) -> None:
    def pairs(of: list[int]) -> int:
        return sum(piece + 1 for piece in of)

    assert {pairs(pieces(rank, ranks, True)) for rank in range(ranks)} == {2 * ranks + 1}
    in_order = [pairs([2 * rank, 2 * rank + 1]) for rank in range(ranks)]
    assert (in_order[0], in_order[-1]) == (3, 4 * ranks - 1)


def test_two_documents_are_level_either_way_and_travel_in_a_zigzag_alone() -> None:
    sees = {0: [0], 1: [0, 1], 2: [2], 3: [2, 3]}  # quarters, in two documents
    for layout, travel in (([(0, 1), (2, 3)], False), ([(0, 3), (1, 2)], True)):
        assert [sum(len(sees[q]) for q in own) for own in layout] == [3, 3]
        assert any(k not in own for own in layout for q in own for k in sees[q]) is travel


def cut_by_torch() -> list[list[int]]:
    """The first sequence of what the chapter's listing cuts: tokens, labels, positions."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ids, positions = torch.arange(16).repeat(2, 1), torch.arange(16)
    labels = pad(ids[:, 1:], (0, 1), value=-100)
    with context_parallel(mesh, buffers=[ids, labels, positions], buffer_seq_dims=[1, 1, 0]):
        return [ids[0].tolist(), labels[0].tolist(), positions.tolist()]


def test_torch_cuts_labels_and_positions_as_the_exercise_says() -> None:
    own = [0, 1, 2, 3, 12, 13, 14, 15]
    assert launch(cut_by_torch, 2)[0] == [own, [1, 2, 3, 4, 13, 14, 15, -100], own]
