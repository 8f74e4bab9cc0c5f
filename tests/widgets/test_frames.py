"""Steppers through pictures: what was recorded, what Python writes, and what a browser plays."""

import re
from itertools import chain, pairwise

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from playwright.sync_api import expect

from course.chapters.disagree.waits import BUGS, stuck_at
from course.chapters.feeding.widgets import CALLS, ENDS, SAMPLES
from course.chapters.keep_going.widgets import EVERY, moments
from course.chapters.pipelines.widgets import ORDERS
from course.chapters.sequences.widgets import eighths
from course.interactive.frames import Cell, Frame, FramesChoice, FramesStepper, drawing
from course.interactive.held import RANK, UNITS
from course.interactive.recording import RANKS
from course.interactive.sliders import STAGES
from course.widgets import (
    attention_stepper,
    pipeline_stepper,
    rounds_stepper,
    sampler_stepper,
    unit_stepper,
    waits_stepper,
    zero_stepper,
)
from minidist.schedule.pipeline import most_held, stages_of
from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import PHONE, Pages, pages  # noqa: F401 (a fixture)

SMALL = FramesStepper(
    "A small one",
    [
        Frame(drawing(["part"], {"one": [[[Cell("weights", "held", "7")]]]}, "all"), "Begins."),
        Frame(drawing(["part"], {"one": [[[Cell("weights", "")]]]}, "none"), "Ends & <b>.", "end"),
    ],
    {},
)


def cells(frame: Frame) -> dict[str, list[list[list[str]]]]:
    """Row → of each column, of each strip: the look of each cell."""
    soup = BeautifulSoup(frame.picture, "html.parser")
    rows: dict[str, list[list[list[str]]]] = {}
    for span in soup.select(".drawing > span"):
        kinds = span.get("class") or []
        if not kinds and span.text:
            rows[span.text] = []
        elif "lines" in kinds:
            strips = [strip.select("i") for strip in span.select(".strip")]
            rows[[*rows][-1]].append([["".join(i["class"][1:]) for i in s] for s in strips])
    return rows


def says(stepper: FramesStepper, start: str) -> list[Frame]:
    return [frame for frame in stepper.frames if re.match(start, frame.says)]


# ---- what was recorded ----


@pytest.fixture(scope="module")
def stages() -> dict[str, FramesStepper]:
    return {name: stepper for (name,), stepper in zero_stepper().steppers.items()}


ALL, NONE = ["held"] * RANKS, [""] * RANKS
OLD = "old"


def own(rank: int, others: str = "") -> list[str]:
    return ["held" if shard == rank else others for shard in range(RANKS)]


@pytest.mark.parametrize("stage", range(4))
def test_between_steps_a_stage_shards_what_it_should(
    stages: dict[str, FramesStepper], stage: int
) -> None:
    frames = stages[STAGES[stage]].frames
    for frame in (frames[0], frames[-1]):
        for rank, (_, row) in enumerate(cells(frame).items()):
            weights, gradients, state = row
            assert weights == [own(rank) if stage == 3 else ALL] * 2
            assert gradients == [NONE] * 2
            assert state == [own(rank) if stage else ALL] * 2


@pytest.mark.parametrize("stage", range(4))
def test_when_the_optimizer_steps_it_has_the_gradients_that_it_needs(
    stages: dict[str, FramesStepper], stage: int
) -> None:
    (step,) = says(stages[STAGES[stage]], ".*optimizer.* step")[-1:]
    for rank, row in enumerate(cells(step).values()):
        assert row[1] == [own(rank) if stage else ALL] * 2
        stale = own(rank, OLD) if stage in (1, 2) else own(rank) if stage else ALL
        assert row[0] == [stale] * 2


def test_stage_2_has_fewer_unsharded_gradients_at_a_time_than_stage_1(
    stages: dict[str, FramesStepper],
) -> None:
    def most(name: str) -> int:
        return max(cells(f)["rank 0"][1].count(ALL) for f in stages[name].frames)

    assert [most(name) for name in STAGES] == [2, 2, 1, 1]


@pytest.mark.parametrize(("stage", "calls"), [(0, (2, 0, 0)), (1, (0, 2, 2)), (3, (0, 2, 4))])
def test_the_collectives_are_those_of_the_stage(
    stages: dict[str, FramesStepper], stage: int, calls: tuple[int, ...]
) -> None:
    names = ("An all-reduce", "A reduce-scatter", "An all-gather")
    assert tuple(len(says(stages[STAGES[stage]], name)) for name in names) == calls


def test_ddp_all_reduces_during_backward_and_the_last_layer_first(
    stages: dict[str, FramesStepper],
) -> None:
    frames = stages["DDP"].frames
    backward = [frame.says for frame in frames if frame.phase == "backward"]
    found = [(said.split()[0], re.findall(r"layer (\d)", said)) for said in backward]
    assert found == [("Backward", ["2"]), ("An", ["2"]), ("Backward", ["1"]), ("An", ["1"])]


def test_a_unit_lives_as_fsdp_lets_it() -> None:
    stepper = unit_stepper()
    for n in range(UNITS):
        life = [
            re.sub(r"[,;:.].*", "", frame.says)
            for frame in stepper.frames
            if re.search(rf"unit {n}\b", frame.says, re.I)
        ]
        gathers = f"The all-gather of unit {n} begins"
        assert life == [
            gathers,
            f"Unit {n} is unsharded",
            f"Unit {n} has computed",
            gathers,
            f"Unit {n} is unsharded again and computes its part of backward",
            f"Unit {n} has computed",
            f"A reduce-scatter averages the gradient of unit {n}",
        ]
    for frame in stepper.frames:
        rows = [row for name, row in cells(frame).items() if name != "in all"]
        weights = [row[0][0] for row in rows]
        shards = sum(bool(look) for row in rows for column in row for look in column[0])
        gathered = sum(strip != own(RANK) for strip in weights)  # beside a shard that stays
        assert f"{shards + gathered} shards take memory" in frame.picture
        assert all(strip[RANK] == "held" for strip in weights)
        assert gathered <= 2
        if re.match("Unit . is unsharded", frame.says):
            assert weights[int(frame.says[5])] == ALL
    first = [re.findall(r"(\d+) shards", frame.picture)[0] for frame in stepper.frames[:5]]
    assert first == ["3", "7", "11", "11", "7"], "1, 5 and 5 of a unit, as in the chapter's figure"
    assert "At most 2 units" in stepper.frames[-1].says
    phases = [frame.phase for frame in stepper.frames[1:]]
    assert sorted({*phases}, key=phases.index) == ["forward", "backward", "step"]


def order(epoch: int) -> list[int]:
    """The sampler's documented order: a permutation by seed and epoch."""
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ENDS)
def test_samples_are_dealt_as_the_sampler_deals_them(call: str, end: str) -> None:
    frames = sampler_stepper().steppers[call, end].frames
    steps = 2 if ENDS[end] else 3
    assert len(frames) == 1 + 3 * steps
    last = BeautifulSoup(frames[-1].picture, "html.parser")
    dealt = [[cell.text for cell in strip.select("i")] for strip in last.select(".strip")]
    orders = [order(epoch if CALLS[call] else 0) for epoch in range(3)]
    padded = [[*each, *each[:2]][: 4 * steps] for each in orders]
    assert dealt == [[str(n) for n in padded[e][rank::4]] for rank in range(4) for e in range(3)]
    repeats = [strip.text for strip in last.select(".strip .old")]
    assert sorted(repeats) == sorted(str(n) for each in padded for n in each[SAMPLES:])
    heads, notes = 4, [note.text for note in last.select(".note")]
    seen = [len({n for each in padded for n in each[rank::4]}) for rank in range(4)]
    assert notes[:heads] == [f"{count} of {SAMPLES}" for count in seen]
    left = [", ".join(map(str, sorted({*range(SAMPLES)} - {*each}))) for each in padded]
    assert notes[heads:] == [*(each or "none" for each in left), ""]
    assert ("Nobody has ever seen" in frames[-1].says) == (not CALLS[call] and ENDS[end])


def test_ranks_get_stuck_at_the_first_call_that_differs() -> None:
    assert [stuck_at(calls) for calls in BUGS.values()] == [None, 2, 4, 1]
    for (bug,), stepper in waits_stepper().steppers.items():
        *_, last = stepper.frames
        waiting = [len(row[-1][0]) for row in cells(last).values() if row]  # a strip's cells
        assert waiting == [1] * 3
        assert last.says.startswith("Stuck: ") == (bug != "nothing")
        held = BeautifulSoup(last.picture, "html.parser").select(".held")
        assert len(held) == {None: 0, 2: 3, 4: 2, 1: 3}[stuck_at(BUGS[bug])]


@pytest.mark.parametrize("name", ORDERS)
def test_a_pipeline_does_all_its_work_and_holds_what_the_order_says(name: str) -> None:
    order, frames = ORDERS[name], pipeline_stepper().steppers[(name,)].frames
    rows = [cells(frame) for frame in frames]
    done = [strip.count("held") for [[strip]] in rows[-1].values()]
    assert done == [len(works) for works in order]
    assert [strip for [[strip]] in rows[0].values()] == [[""]] * 3
    held = [[float(row.split()[-1]) for row in each] for each in rows]
    most = [each * 3 / stages_of(order) for each in most_held(order)]
    assert [max(each) for each in zip(*held, strict=True)] == most
    waits = {"GPipe": 25, "1F1B": 25, "interleaved, two chunks": 14}.get(name, 10)
    assert frames[-1].says.endswith(f"A rank has waited {waits}% of the time.")
    assert any("Rank 2 waits for rank 1: forward 0" in frame.says for frame in frames)


# ---- what is written and played ----


def test_a_terminal_gets_lines() -> None:
    assert repr(SMALL) == "A small one: 1 steps"
    assert repr(zero_stepper()).splitlines()[0] == "DDP: One step under DDP: 7 steps"


def test_without_a_script_all_frames_are_there(pages: Pages) -> None:  # noqa: F811
    page = pages.open(SMALL._repr_html_(), java_script_enabled=False)
    expect(page.locator(".drawing")).to_have_count(2)
    expect(page.get_by_text("Ends & <b>.")).to_be_visible()


def test_frames_are_played_with_the_stepper_s_keys(pages: Pages) -> None:  # noqa: F811
    page = pages.open(SMALL._repr_html_())
    status, shown = page.get_by_role("status"), page.locator(".stage [role=img]")
    expect(shown).to_have_attribute("aria-label", "all")
    expect(status).to_contain_text("Begins.")
    page.keyboard.press("ArrowRight")  # it is in view
    expect(shown).to_have_attribute("aria-label", "none")
    expect(status).to_contain_text("Step 1 of 1: end, step 1 of 1")
    expect(status).to_contain_text("Ends & <b>.")
    page.get_by_role("button", name="Back").click()
    page.keyboard.press("End")
    expect(page.get_by_role("slider", name="Step")).to_have_value("1")


def test_a_sum_has_the_changes_of_the_living_members_and_no_others() -> None:
    seen = list(moments())
    assert len(rounds_stepper().frames) == len(seen)
    sums = [now for now in seen if now.changes and now.moving]
    assert [now.phase for now in sums] == ["round 1", "round 2", "round 3"]
    for now in sums:
        members = [n for n, each in enumerate(now.workers) if each.weights is not None]
        assert [*now.changes] == [*now.moving] == members
        assert all(now.workers[n].steps == EVERY for n in members)
    rounds = [{each.weights for each in now.workers} - {None} for now in sums]
    assert rounds == [{0}, {1}, {2}], "each begins where the one before has ended"


def test_each_stage_can_be_chosen_and_played(pages: Pages) -> None:  # noqa: F811
    page = pages.open(zero_stepper()._repr_html_(), PHONE)
    expect(page.get_by_label("Strategy")).to_have_count(1)
    for name in STAGES[::3]:
        page.get_by_label("Strategy").select_option(name)
        expect(page.locator("figure:visible figcaption")).to_have_text(f"One step under {name}")
        page.locator("button:visible", has_text="Next").click()
        expect(page.locator("figure:visible .said")).to_contain_text("Step 1 of")
        page.keyboard.press("End")
        expect(page.locator("figure:visible .said")).to_contain_text("gradients are dropped")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE


def test_axe_finds_nothing_after_use_at_night(pages: Pages) -> None:  # noqa: F811
    several = (pipeline_stepper(), sampler_stepper(), waits_stepper(), zero_stepper())
    first = (FramesChoice(each.labels, dict([*each.steppers.items()][:1])) for each in several)
    steppers = (unit_stepper(), rounds_stepper(), *first)
    page = pages.open("".join(each._repr_html_() for each in steppers), PHONE, "dark")
    for figure in page.locator("figure:visible").all():
        figure.get_by_role("slider").fill("5")
    page.locator("summary:visible").last.click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE


# ---- ring attention ----


@pytest.mark.parametrize(("layout", "pairs"), [("in order", [3, 7, 11, 15]), ("zigzag", [9] * 4)])
def test_ring_attention_computes_what_a_token_may_see_once(layout: str, pairs: list[int]) -> None:
    stepper = attention_stepper().steppers[(layout,)]
    assert len(stepper.frames) == 1 + 4
    last = cells(stepper.frames[-1])
    seen = {}
    for rank, (_, scores) in enumerate(last.values()):
        assert sum(look != "" for strip in scores for look in strip) == pairs[rank]
        for eighth, strip in zip(eighths(rank, layout == "zigzag"), scores, strict=True):
            seen[eighth] = [look != "" for look in strip]
    assert seen == {query: [key <= query for key in range(8)] for query in range(8)}
    for before, after in pairwise(stepper.frames):  # what has been computed stays
        for old, new in zip(cells(before).values(), cells(after).values(), strict=True):
            both = zip(chain(*old[1]), chain(*new[1]), strict=True)
            assert all(now == "done" for was, now in both if was)
    assert bool(says(stepper, ".*must wait")) == (layout == "in order")
