"""The first chapter: numbers of other types for its graders, and its prices by hand."""

import pytest

from course.chapters.why.costs import layer_costs, operations_per_byte
from course.pages.price import ask
from minidist.planner.hardware import H100
from minidist.planner.jobs import MEDIUM, sized
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("why")


@pytest.mark.parametrize(
    ("job", "gigabytes"), [("small", 51.4), ("medium", 128.5), ("large", 6494)]
)
def test_the_state_is_that_of_the_page_on_rates(job: str, gigabytes: float) -> None:
    found = ask("state", job, gpus=1, strategy="single") / 1e9
    assert found == pytest.approx(gigabytes, rel=5e-4)


def test_a_sequence_of_the_medium_model_by_hand() -> None:
    rate = 0.56 * 989e12 * 4096 / (4096 + 560)
    matrices = 6 * (8_030_261_248 - 128_256 * 4096)  # the lookup multiplies nothing
    attention = 3 * 2 * 32 * 8192 * 4096  # causal
    seconds = 8192 * (matrices + attention / 0.35) / rate
    assert ask("compute", "medium", gpus=1, strategy="single") == pytest.approx(seconds, rel=1e-3)
    assert seconds * 160e9 / 8192 / 86_400 == pytest.approx(241, abs=1)


def test_communication_of_a_million_tokens_takes_longer_from_81_nodes_on() -> None:
    whole = ask("compute", gpus=1, tokens=2**20, sequence=1024, strategy="single")
    assert ask("compute", gpus=1024, tokens=1024, sequence=1024) == pytest.approx(whole / 1024)
    slower = [
        8 * nodes
        for nodes in range(2, 129)
        if ask("all_reduce", gpus=8 * nodes) > whole / (8 * nodes)
    ]
    assert slower == list(range(648, 1025, 8))


def test_a_layer_s_operations_are_13_widths_squared_and_attention_s_over_13_d_of_them() -> None:
    for sequence in (2048, 8192):
        *matrices, attention = layer_costs("medium", sequence).values()
        assert sum(matrices) == pytest.approx(2e-6 * 13 * MEDIUM.width**2)
        assert attention / sum(matrices) == pytest.approx(sequence / 13 / MEDIUM.width)
        sizes = sized("medium", sequence)
        forward = (sum(matrices) + attention) * 1e6 * sizes.units * sequence
        assert forward == pytest.approx(sizes.operations - sizes.head)
    assert 0.8 < matrices[2] / sum(matrices) < 0.81  # of the figure's alternative text


def test_the_clock_reaches_just_under_half_of_the_peak_and_a_third_of_that_in_attention() -> None:
    assert 0.47 < H100.rate(4096) / H100.flops < 0.5
    assert 0.3 < H100.attention < 0.36


def test_operations_per_byte_by_hand() -> None:
    tokens, width, hidden = 8192, 4096, 14_336
    product = 2 * tokens * width * hidden
    moved = 2 * (tokens * width + tokens * hidden + width * hidden)
    attention = 2 * tokens * tokens * width  # causal: half of the pairs, twice, by two products
    read = 2 * tokens * (2 * width + 2 * 8 * 128)  # queries and results, keys and values
    found = operations_per_byte("medium", tokens)
    assert found["matrices"] == pytest.approx(product / moved)
    assert found["attention"] == pytest.approx(attention / read)
    assert min(found["matrices"], found["attention"]) > 5 * H100.flops / H100.bandwidth
