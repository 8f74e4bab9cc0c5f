"""The graders of the lab inside a layer, and a long sequence by hand."""

from course.pages.price import ask
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("inside")


def test_a_sequence_of_131072_tokens_does_not_fit_one_gpu_and_does_64() -> None:
    tokens = 131_072
    logits = 10 * tokens * 128_256  # bf16, and two numbers in fp32
    blocks = ask("activations", "medium", gpus=64, tokens=tokens, sequence=tokens) - logits
    by_hand = 51 * 4096 * 32 * tokens  # bytes of a token and layer, per number of the width
    assert (round(by_hand / 1e9), round(logits / 1e9)) == (876, 168)
    assert by_hand < blocks < 1.01 * by_hand, "the embedding's output and the last norm on top"
    assert (round(blocks / 64e9, 1), round(logits / 64e9, 1)) == (13.7, 2.6)
