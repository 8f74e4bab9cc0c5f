"""The milestones after FSDP: a lesson with a mistake in it gets a diagnosis."""

import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from course.ask import wire
from course.ask.verdict import Wrong
from course.project import held, report
from course.project.check import Sent, check_sent
from course.project.computed import MORE, Computed, compare_computed, counted
from course.project.held import STEPS, Held, Lines, known, lines_of
from course.project.milestones import MILESTONES
from course.project.models import Drawn, uneven
from tests.course.milestones import SCENARIOS, diagnosed, graded, lesson
from tools.work import stub

test_a_mistake_in_the_lesson_is_told = diagnosed(*SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stub_is_no_mistake_yet(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = graded(name, stub(lesson(name)), tmp_path, monkeypatch, 2)
    assert verdict.status == "not yet"
    assert f"in mine/{MILESTONES[name].file}.py, line" in verdict.text


def test_a_name_is_that_of_its_file_too_and_has_a_scoreboard() -> None:
    for name in SCENARIOS:
        assert report.names_of(MILESTONES[name].file) == [name]
    rows = report.scoreboard("tensor parallelism", "from_scratch").data.splitlines()
    assert rows[0] == "| code of | messages | bytes sent |"
    assert rows[2].startswith("| from_scratch | 96 | ")


def test_code_for_five_ranks_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RANKS", (2,))
    few = "def all_reduce(tensor: Tensor) -> None:"
    text = lesson("ring").replace(few, f"{few}\n    assert dist.get_world_size() <= 5")
    assert text != lesson("ring")
    verdict = graded("ring", text, tmp_path, monkeypatch)
    assert "AssertionError" in verdict.text, verdict


LEAST = Sent(4, 400, 700, [], "COURSE_SEED=5")


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (
            LEAST._replace(messages=1),
            "sends 1 message with 400 bytes in all, expected 4 messages with 400: e",
        ),
        (
            LEAST._replace(messages=5),
            "sends 5 messages with 400 bytes in all, where 4 messages with 400 wo",
        ),
        (LEAST._replace(nbytes=100), "100 of the 400 bytes that it takes went through `isend`"),
        (LEAST._replace(wire=9000), "puts 9,000 bytes on the network, headers included; 700 are"),
    ],
)
def test_a_pipeline_that_sends_more_or_less_is_told(own: Sent, told: str) -> None:
    check_sent(MILESTONES["pipeline"], LEAST, LEAST, "")
    with pytest.raises(Wrong, match=rf"{told}.*\(COURSE_SEED=5\)$"):
        check_sent(MILESTONES["pipeline"], own, LEAST, "")


def test_what_waits_in_a_socket_is_on_the_wire() -> None:
    """Nobody reads, so a part of it cannot leave: as on a machine that has other work."""
    before, given = wire.sent(), 0
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0],
        suppress(BlockingIOError),
    ):
        sender.setblocking(False)
        while True:
            given += sender.send(bytes(2**16))
            assert wire.sent() - before == given


def test_what_is_held_may_be_a_little_more() -> None:
    least = Held(peak=10**6, kept=10**6)
    held.compare_held(Held(12 * 10**5, 14 * 10**5), least, "")
    with pytest.raises(Wrong, match=r"holds 1,300,000 bytes of tensors .* Keep less\."):
        held.compare_held(Held(13 * 10**5, 10**6), least, "Keep less.")
    with pytest.raises(Wrong, match="process of this rank grow by 2,000,000 bytes"):
        held.compare_held(Held(10**6, 2 * 10**6), least, "")


def test_a_line_is_named_that_makes_half_of_what_is_held_in_vain() -> None:
    least, lines = Held(10**6, 10**6), Lines(Counter({"a.py, line 3": 10**5}), Counter())
    lines.tensors["a.py, line 7"] = 5 * 10**5
    told = r"1,000,000 are enough\. 500,000 of them come from a.py, line 7\. Less\."
    with pytest.raises(Wrong, match=told):
        held.compare_held(Held(2 * 10**6, 10**6), least, "Less.", lines)
    with pytest.raises(Wrong, match=r"1,000,000 are enough\. Less\."):
        held.compare_held(Held(3 * 10**6, 10**6), least, "Less.", lines)


@pytest.mark.parametrize(
    ("made", "by_a_line"),
    [
        ({}, False),
        ({"": 9 * 10**6, "a.py, line 3": 10**6}, False),
        ({"a.py, line 3": 2 * 10**6}, True),
    ],
)
def test_a_growth_is_known_of_which_a_learner_s_lines_have_made_half(
    made: dict[str, int], by_a_line: bool
) -> None:
    lines = Lines(Counter(), Counter(made))
    assert known(Held(7, 5 * 10**6), Held(7, 10**6), lines) == by_a_line


def test_memory_is_that_of_the_line_which_made_it() -> None:
    kept = list[object]()

    def step() -> None:
        kept.append(torch.ones(10**4).view(100, 100))
        kept.append(np.ones(10**5))
        torch.zeros(2 * 10**4)

    made = lines_of(lambda: step)
    of_tensors, of_arrays = ({*each.values()} for each in made)
    assert {STEPS * 4 * 10**4, 8 * 10**4} <= of_tensors
    assert any(STEPS * 8 * 10**5 <= each < STEPS * 9 * 10**5 for each in of_arrays)
    assert all("test_scenarios.py, line" in line for line in made.tensors)


def test_a_product_counts_however_it_is_called() -> None:
    x, y = torch.ones(3, 4).double(), torch.ones(4, 5).double()
    ways: dict[str, Callable[[], object]] = {
        "at once": lambda: x @ y,
        "by rows": lambda: [each @ y for each in x],
        "written out": lambda: x[:, :, None] * y,
        "by its name": lambda: torch.einsum("ab,bc->ac", x, y),
    }
    for way, product in ways.items():
        with Computed() as count:
            product()
        assert 60 <= count.lines.total() < 80, way
    q = torch.ones(1, 2, 3, 4).requires_grad_()
    with Computed() as count:
        scaled_dot_product_attention(q, q, q).sum().backward()
    assert count.lines.total() >= 2 * 3 * 3 * 4 * (2 + 5)


def test_what_other_threads_compute_counts() -> None:
    x = torch.ones(8, 8)
    with ThreadPoolExecutor(1) as earlier:
        earlier.submit(int).result()
        with counted() as count:
            earlier.submit(lambda: x @ x).result()
            thread = Thread(target=lambda: x @ x)
            thread.start()
            thread.join()
    assert 2 * 512 <= count.lines.total() < 2 * 600
    assert not count.left


def test_numbers_that_leave_torch_are_seen() -> None:
    x = torch.ones(8)
    for leave in (np.asarray, np.from_dlpack, lambda x: x.numpy(), lambda x: x.int().numpy()):
        with counted() as count:
            leave(x)
        assert count.left.startswith("test_scenarios.py") == (count.left != "")
        assert bool(count.left) == (leave(x).dtype == np.float32)


def test_twice_as_many_multiplications_may_be_made_and_three_times_as_many_not() -> None:
    counts = [Computed() for _ in range(3)]
    for count, factor in zip(counts, (1, MORE, MORE + 0.5), strict=True):
        count.lines["tensor.py, line 3"], count.lines[""] = int(100 * factor), int(900 * factor)
    least, enough, many = counts
    compare_computed(enough, least, "")
    told = r"computes 3.0 times .* 3,000 mul.* in tensor.py, line 3; 1,000 are enough\. Less\."
    with pytest.raises(Wrong, match=told):
        compare_computed(many, least, "Less.")


def test_sizes_are_drawn_from_the_seed_and_named() -> None:
    drawn = {seed: Drawn(seed) for seed in range(20)}
    rounds = {each.size("H", 6, 9) for each in drawn.values()}
    assert rounds == {6, 7, 8, 9}
    assert str(Drawn(3)) == "COURSE_SEED=3"
    assert str(drawn[3]) == f"drawn: H {Drawn(3).size('', 6, 9)}; COURSE_SEED=3"
    assert not drawn[3].numbers(0, 4).equal(drawn[4].numbers(0, 4))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_ranks_never_share_out_the_first_model_evenly(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    drawn = [Drawn(seed) for seed in range(20)]
    numels = [sum(each.numel() for each in uneven(each).parameters()) for each in drawn]
    assert all(numel % ranks for numel in numels)
    assert len({str(each).partition("; ")[0] for each in drawn}) == 20
