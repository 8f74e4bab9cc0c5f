"""The stepper: what Python writes, and what the script makes of it in a browser."""

import json
import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from playwright.sync_api import Locator, Page, expect

from minidist.plots.replay import assets, stepper
from minidist.plots.told import numbers, sentences
from minidist.schedule.algorithms import (
    hierarchical_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    tree_all_reduce,
)
from minidist.schedule.replay import Contributors, Event, Replay
from minidist.schedule.schedule import Send
from minidist.schedule.traffic import replay
from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.cases import alike
from tests.support.pages import DESK, PHONE, Pages, pages  # noqa: F401 (a fixture)

# Rank 0's part comes to rank 1 twice: the second time by way of rank 2.
TWICE = Replay("all_reduce", ranks=3, chunks=1, name="a faulty one")
for src, dst in ((0, 1), (0, 2), (2, 1)):
    TWICE.step([Send(src, dst, 0, True)])
RING, TREE = replay(ring_all_reduce(4)), replay(tree_all_reduce(8))
ALONE, RING_OF_12 = (replay(ring_all_reduce(ranks)) for ranks in (1, 12))
REPLAYS = [RING_OF_12, replay(ring_all_gather(4)), TREE, ALONE, TWICE]
WHOLE = ("name", "ranks", "chunks", "steps", "start", "goal", "phases")


def html(played: Replay) -> str:
    text = stepper(played)._repr_html_()
    assert isinstance(text, str)
    return text


def parse(text: str) -> BeautifulSoup:
    return BeautifulSoup(text, "html.parser")


# ---- what Python writes ----


def test_the_trace_is_the_replay_and_the_table_names_every_message() -> None:
    for played in REPLAYS:
        soup = parse(html(played))
        trace = json.loads(soup.find("script", type="application/json").string)
        right: dict[str, Any] = {name: getattr(played, name) for name in WHOLE}
        right["events"] = [
            [e.step, e.src, e.dst, e.chunk, e.reduce, e.carried, e.result] for e in played.events
        ]
        right["numbers"] = numbers(played)
        alike(trace, json.loads(json.dumps(right)))
        rows = soup.select("tbody tr")
        assert [row.th.text for row in rows] == [str(k + 1) for k in range(played.steps)]
        for event in played.events:
            said = rows[event.step].text
            assert f"rank {event.src} sends" in said
            assert f"to rank {event.dst}, which {'adds' if event.reduce else 'overwrites'}" in said


def test_a_sentence_says_what_was_sent_and_what_is_held_then() -> None:
    one = Event(0, 0, 1, 3, True, (0, 3), (0, 1, 3))
    assert sentences([one]) == ["rank 0 sends chunk 3 (0+3) to rank 1, which adds it: 0+1+3"]
    assert sentences([Event(0, 0, 1, c, False, (0, 1), (0, 1)) for c in (0, 1)]) == [
        "rank 0 sends chunks 0, 1 (0+1) to rank 1, which overwrites its own: 0+1"
    ]


def test_a_name_cannot_break_out() -> None:
    name = '</script><script>document.title = "broken"</script><b>&'
    soup = parse(html(Replay("all_reduce", 1, 1, name=name)))
    assert json.loads(soup.find("script", type="application/json").string)["name"] == name
    assert soup.figcaption.strong.text == name
    assert not soup.find("b")
    assert len(soup.find_all("script")) == 3  # the trace, the player and what it plays


def test_only_a_notebook_gets_the_script_and_the_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDIST_BOOK", raising=False)
    notebook = html(RING)
    monkeypatch.setenv("MINIDIST_BOOK", "1")
    book = html(RING)
    assert notebook == book + assets()
    assert "id=" not in book, "two on a page would share it"
    assert not parse(book).select("style, script:not([type])")
    files = re.findall(r"<(?:style|script)>\n(.*?)</(?:style|script)>", assets(), re.S)
    assert len(files) == 3
    assert "<" not in files[0]
    for text in (each.replace("http://www.w3.org/2000/svg", "") for each in files):
        assert "</" not in text
        assert not re.search(r"https?:|//\w|url\(|@import|\beval\b|innerHTML", text)


def test_a_terminal_gets_one_line_and_too_many_ranks_are_refused() -> None:
    assert repr(stepper(RING)) == (
        "ring all-reduce: 4 ranks, 4 chunks, 6 steps, 16 of 16 chunks right at the end"
    )
    with pytest.raises(ValueError, match="33 ranks and 33 chunks; a stepper can show 32"):
        stepper(replay(ring_all_gather(33)))
    with pytest.raises(ValueError, match=r"expected one for each of 4 ranks, got \[1, 2\]"):
        stepper(RING, numbers=[1, 2])


def test_numbers_are_the_sums_of_what_the_contributors_began_with() -> None:
    for played in REPLAYS:
        start, results = numbers(played).values()
        sums = [sum(start[r][event.chunk] for r in event.result) for event in played.events]
        assert results == sums, played.name


def test_phases_are_named_by_what_they_promise() -> None:
    assert RING.phases == (("reduce-scatter", 3), ("all-gather", 3))
    assert TREE.phases == (("reduce", 3), ("broadcast", 3))
    assert ALONE.phases == ()
    assert replay(recursive_doubling_all_reduce(4)).phases == ()
    assert replay(hierarchical_all_reduce(4, local=2)).phases == ()


# ---- what a browser shows ----


def figure(page: Page, nth: int = 0) -> Locator:
    return page.locator("figure.minidist-widget").nth(nth)


def button(shown: Locator, name: str) -> Locator:
    return shown.get_by_role("button", name=name, exact=True)


def slider(shown: Locator) -> Locator:
    return shown.get_by_role("slider", name="Step")


def expect_position(shown: Locator, position: int) -> None:
    expect(slider(shown)).to_have_value(str(position))
    says = f"Step {position} of" if position else "Start, before any message"
    expect(shown.get_by_role("status")).to_contain_text(says)


def cell_text(contributors: Contributors, ranks: int) -> str:
    text = "+".join(map(str, contributors))
    return f"{len(set(contributors))} of {ranks}" if len(text) > 15 else text or "empty"


def mark(contributors: Contributors, goal: Contributors | None) -> str:
    if len(set(contributors)) < len(contributors):
        return "✗"
    return "✓" if contributors == goal else ""


def expect_picture(shown: Locator, played: Replay, position: int) -> None:
    """Every cell, its bar and mark, every arrow and every sentence, after `position` steps."""
    held = played.state(position)
    events = [event for event in played.events if event.step == position - 1]
    pairs = [list(zip(row, want, strict=True)) for row, want in zip(held, played.goal, strict=True)]
    seen = shown.evaluate(
        """figure => {
          const cells = [...figure.querySelectorAll(".rank")].map(
            (row) => [...row.querySelectorAll("[role=cell]")]);
          const each = (look) => cells.map((row) => row.map(look));
          const texts = (query) => [...figure.querySelectorAll(query)].map((n) => n.textContent);
          return {
            sums: each((cell) => cell.querySelector(".sum").textContent),
            full: each((cell) => cell.title),
            bars: each((cell) => [...cell.querySelectorAll("i")].flatMap((bit, rank) =>
              bit.matches(".twice") ? [rank, rank] : bit.matches(".in") ? [rank] : [])),
            marks: each((cell) => cell.querySelector("b")?.textContent ?? ""),
            received: each((cell) => cell.matches(".received")),
            arrows: texts("svg text"),
            sentences: texts(".said > ul > li"),
            ahead: texts(".said .ahead li"),
          };
        }"""
    )
    arrived = {(event.dst, event.chunk) for event in events}
    assert seen == {
        "sums": [[cell_text(sum_, played.ranks) for sum_ in row] for row in held],
        "full": [["+".join(map(str, sum_)) for sum_ in row] for row in held],
        "bars": [[list(sum_) for sum_ in row] for row in held],
        "marks": [[mark(*pair) for pair in row] for row in pairs],
        "received": [
            [(rank, chunk) in arrived for chunk in range(played.chunks)]
            for rank in range(played.ranks)
        ],
        "arrows": ["+" if event.reduce else "=" for event in events],
        "sentences": sentences(events),
        "ahead": [] if position else sentences(event for event in played.events if not event.step),
    }
    right = sum(sum_ == want for row in pairs for sum_, want in row)
    expect(shown.locator(".count")).to_have_text(f"{right} of {played.wanted} complete")


def test_every_step_shows_what_the_simulator_did(pages: Pages) -> None:  # noqa: F811
    for played in REPLAYS:
        shown = figure(pages.open(html(played)))
        for position in range(played.steps + 1):
            expect_position(shown, position)
            expect_picture(shown, played, position)
            button(shown, "Next").click(force=True)  # at the end too, where it does nothing
        expect_position(shown, played.steps)
        twice = shown.get_by_role("img", name="a rank is counted twice")
        expect(twice).to_have_count(1 if played is TWICE else 0)
        legend = shown.locator(".legend").text_content() or ""
        assert ("✗ a rank is counted twice" in legend) == (played is TWICE)


def test_arrows_go_from_the_sender_s_cell_to_the_receiver_s(pages: Pages) -> None:  # noqa: F811
    shown = figure(pages.open(html(TREE)))
    for position in range(1, TREE.steps + 1):
        button(shown, "Next").click()
        far = shown.evaluate(
            """figure => {
              const cells = [...figure.querySelectorAll(".rank > [role=cell]")];
              const boxes = cells.map((cell) => cell.getBoundingClientRect());
              const origin = figure.querySelector("svg").getBoundingClientRect();
              const touches = ({ x, y }) => boxes.findIndex((box) =>
                x + origin.left >= box.left - 2 && x + origin.left <= box.right + 2 &&
                y + origin.top >= box.top - 2 && y + origin.top <= box.bottom + 2);
              const lines = figure.querySelectorAll("svg .line");
              const heads = figure.querySelectorAll("svg .head");
              return [...lines].map((line, i) =>
                [line, heads[i]].map((path) => touches(path.getPointAtLength(0))));
            }"""
        )
        events = [event for event in TREE.events if event.step == position - 1]
        assert far == [[event.src, event.dst] for event in events]


def test_buttons_slider_and_keys_wherever_the_focus_is(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(RING))
    shown = figure(page)
    back, next_ = button(shown, "Back"), button(shown, "Next")
    expect(back).to_have_attribute("aria-disabled", "true")
    next_.click()
    next_.click()
    expect(slider(shown)).to_have_attribute("aria-valuetext", "after step 2 of 6, reduce-scatter")
    expect(shown.locator(".phases span")).to_have_text(["reduce-scatter", "all-gather"])
    back.click()
    expect_position(shown, 1)
    slider(shown).fill("4")
    expect(shown.get_by_role("status")).to_contain_text("Step 4 of 6: all-gather, step 1 of 3")
    expect(shown.locator(".phases .now")).to_have_text("all-gather")
    slider(shown).fill("6")
    expect_position(shown, 6)
    expect(next_).to_have_attribute("aria-disabled", "true")
    for focus in (slider(shown).focus, next_.focus, shown.get_by_text("rank 2", exact=True).click):
        focus()
        for key, position in (("End", 6), ("ArrowLeft", 5), ("Home", 0), ("ArrowRight", 1)):
            page.keyboard.press(key)
            expect_position(shown, position)
    page.keyboard.press("Control+ArrowRight")
    expect_position(shown, 1)


def test_arrow_keys_go_to_the_one_under_the_pointer_or_else_in_view(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(RING) + '<p style="height: 2000px"></p>' + html(TREE))
    ring, tree = figure(page, 0), figure(page, 1)
    page.keyboard.press("ArrowRight")  # nothing has the focus; the ring fills the window
    expect_position(ring, 1)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.keyboard.press("ArrowRight")
    expect_position(tree, 1)
    page.evaluate("scrollTo(0, 1400)")  # neither
    page.keyboard.press("ArrowRight")
    ring.hover()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")  # scrolls the page
    expect_position(ring, 2)
    expect_position(tree, 1)


def test_numbers_stand_beside_the_contributors(pages: Pages) -> None:  # noqa: F811
    shown = figure(pages.open(html(RING)))
    values = shown.locator(".number")
    expect(values.first).not_to_be_visible()
    toggle = button(shown, "Numbers")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    slider(shown).press("End")
    start = numbers(RING)["start"]
    sums = [sum(row[chunk] for row in start) for chunk in range(4)]
    assert values.all_inner_texts() == [str(each) for each in sums * 4]
    toggle.click()
    expect(values.first).not_to_be_visible()


def test_numbers_that_were_asked_for_are_there_from_the_start(pages: Pages) -> None:  # noqa: F811
    given = stepper(RING, numbers=[1, 10, 100, 1000])
    shown = figure(pages.open(given._repr_html_()))
    values = shown.locator(".number")
    expect(values.first).to_be_visible()
    assert values.all_inner_texts() == [str(10**rank) for rank in range(4) for chunk in range(4)]
    expect(button(shown, "Numbers")).to_have_attribute("aria-pressed", "true")
    slider(shown).press("End")
    assert values.all_inner_texts() == ["1111"] * 16


def test_one_of_several_is_chosen_by_algorithm_and_ranks(pages: Pages) -> None:  # noqa: F811
    others = [replay(ring_all_reduce(2)), TREE, replay(tree_all_reduce(2))]
    several = stepper(RING, *others)
    assert repr(several).endswith("; and 3 more to choose from")
    page = pages.open(several._repr_html_())
    algorithm, ranks = page.get_by_label("Algorithm"), page.get_by_label("Ranks")
    shown = page.locator("figure:visible")
    button(shown, "Next").click()
    expect_picture(shown, RING, 1)
    ranks.select_option("2")
    expect_picture(shown, others[0], 0)
    algorithm.select_option("tree all-reduce")
    expect_picture(shown, others[2], 0)
    ranks.select_option("4")  # no tree of four: the first that has four
    expect(algorithm).to_have_value("ring all-reduce")
    expect_picture(shown, RING, 1)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    bare = pages.open(several._repr_html_(), java_script_enabled=False)
    expect(bare.locator("details")).to_have_count(4)


def test_a_phone_shows_four_ranks_at_once_and_fingers_have_room(pages: Pages) -> None:  # noqa: F811
    shown = figure(pages.open(html(RING), PHONE))
    for control in shown.locator("button, input, summary").all():
        assert control.evaluate("it => it.getBoundingClientRect().height") >= 44
    for _ in range(RING.steps):
        button(shown, "Next").click()
        right = "it => it.getBoundingClientRect().right"
        edge = shown.locator(".scroller").evaluate(right)
        assert max(shown.locator("svg text").evaluate_all(f"all => all.map({right})")) <= edge
    scroller = shown.locator(".scroller")
    assert scroller.evaluate("box => box.scrollWidth <= box.clientWidth")
    expect(scroller).not_to_have_attribute("tabindex", "0")
    count = "sums => sums.map((sum) => sum.getClientRects().length)"
    assert set(shown.locator(".sum span").evaluate_all(count)) == {1}, "lines of a sum"


def test_play_stops_at_the_end_and_starts_again(pages: Pages) -> None:  # noqa: F811
    quick = html(replay(ring_all_reduce(3))).replace("<figure", '<figure data-interval="30"', 1)
    shown = figure(pages.open(quick))
    for _ in range(2):  # the second time from the end
        button(shown, "Play").click()
        expect(button(shown, "Play")).to_be_visible()
        expect_position(shown, 4)


def test_play_can_be_paused_and_is_silent_meanwhile(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(RING).replace("<figure", '<figure data-interval="1e8"', 1))
    shown, status = figure(page), figure(page).get_by_role("status")
    slider(shown).focus()
    page.keyboard.press("Space")
    expect_position(shown, 1)
    expect(status).to_have_attribute("aria-live", "off")
    button(shown, "Pause").click()
    expect(status).to_have_attribute("aria-live", "polite")
    expect_position(shown, 1)
    page.keyboard.press("Space")  # the focus is on the button: pressed once, not twice
    expect(button(shown, "Pause")).to_be_visible()
    expect_position(shown, 2)


def test_outputs_that_a_notebook_inserts_later_play_apart(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(RING))
    for played in (RING, TREE):  # so the script is there three times
        page.evaluate(
            """text => {
              const range = document.createRange();
              range.selectNode(document.body);
              document.querySelector("main").append(range.createContextualFragment(text));
            }""",
            html(played),
        )
    expect(page.locator(".controls")).to_have_count(3)
    button(figure(page, 0), "Next").click()
    slider(figure(page, 2)).fill("5")
    for nth, played, position in ((0, RING, 1), (1, RING, 0), (2, TREE, 5)):
        expect_position(figure(page, nth), position)
        expect_picture(figure(page, nth), played, position)


def test_the_table_is_there_without_a_script_and_on_paper(pages: Pages) -> None:  # noqa: F811
    text = html(RING)
    shown = figure(pages.open(text, java_script_enabled=False))
    expect(shown.get_by_text("rank 3 sends chunk 2 (3)")).to_be_visible()
    page = pages.open(text)
    sentence = figure(page).locator("details li").first
    expect(sentence).not_to_be_visible()
    page.emulate_media(media="print")
    expect(sentence).to_be_visible()
    expect(button(figure(page), "Next")).not_to_be_visible()


def test_a_wide_one_scrolls_in_its_own_box_and_fades_out_where_there_is_more(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(replay(ring_all_reduce(8))), PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE
    scroller = figure(page).get_by_role("group", name="Picture, scrolls sideways")
    expect(scroller).to_have_css("mask-image", re.compile("linear-gradient"))
    scroller.focus()
    page.keyboard.press("ArrowRight")  # scrolls, and does not step
    page.wait_for_function("document.querySelector('.scroller').scrollLeft > 0")
    expect_position(figure(page), 0)
    scroller.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    expect(scroller).to_have_css("mask-image", "none")
    page.set_viewport_size({"width": DESK, "height": 800})
    expect(figure(page).locator(".scroller")).not_to_have_attribute("tabindex", "0")


def test_axe_finds_nothing_after_use_at_night(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(RING) + html(replay(ring_all_reduce(8))) + html(TWICE), PHONE, "dark")
    for nth, position in enumerate(("3", "13", "3")):
        slider(figure(page, nth)).fill(position)
    figure(page, 0).locator("summary").click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_it_follows_the_theme_of_the_page_before_that_of_the_system(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(RING))
    page.evaluate("document.documentElement.removeAttribute('data-theme')")

    def ink(system: str) -> str:
        page.emulate_media(color_scheme=system)
        colour = "getComputedStyle(document.querySelector('.minidist-widget')).color"
        return str(page.evaluate(colour))

    bright, dark = ink("light"), ink("dark")
    assert bright != dark
    for element, attribute, of_dark, of_light in (
        ("documentElement", "data-theme", "dark", "light"),  # the book
        ("body", "data-jp-theme-light", "false", "true"),  # JupyterLab
        ("body", "class", "vscode-dark", "vscode-light"),
    ):
        for value, colour in ((of_light, bright), (of_dark, dark)):
            page.evaluate(f"document.{element}.setAttribute('{attribute}', '{value}')")
            assert ink("dark") == ink("light") == colour
        page.evaluate(f"document.{element}.removeAttribute('{attribute}')")
