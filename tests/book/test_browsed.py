"""Every page of the rendered book, opened from file:// as a reader would.

Half of them here, the others in `test_browsed_others.py`: two processes share what takes longest.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from math import inf
from xml.etree import ElementTree

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Error, Page, expect

from tests.book.rendered import HTML, PAGES
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

# All pages are seen before the first test: that takes minutes, and longer on a busy machine.
pytestmark = [pytest.mark.usefixtures("book_is_built"), pytest.mark.timeout(3600)]

PHONE, DESK = (390, 844), (1280, 900)

# Elements that stick out of the page and that no box around them scrolls or cuts.
STICKING_OUT = """() => {
  const width = document.documentElement.clientWidth;
  const inside = (element) => element.getBoundingClientRect().right <= width + 1;
  const clips = (element) => getComputedStyle(element).overflowX !== "visible";
  const boxed = (box) => box && ((clips(box) && inside(box)) || boxed(box.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter((element) => !inside(element) && !boxed(element))
    .map((element) => element.outerHTML.slice(0, 160));
}"""
# Of each picture: its file, its width and height as shown, and what is in it.
SHOWN = """() => [...document.querySelectorAll("article img[src$='.svg']")]
    .filter((picture) => picture.clientWidth)
    .map((it) => [it.src.split("/").at(-1), it.clientWidth, it.clientHeight, it.alt])"""
ON_A_DESK, ON_A_PHONE = (11, 15), (10, 15)  # pixels of the smallest and the largest letters
SCREEN = 800  # pixels of a desk's height that a picture may take
# Code and outputs that are not shown whole, folded ones too. (On a phone printed tables scroll.)
CLIPPED = """() => {
  const folded = [...document.querySelectorAll("article details:not([open])")];
  folded.forEach((each) => { each.open = true; });
  const clipped = [...document.querySelectorAll("article pre")]
    .filter((pre) => pre.clientWidth && pre.scrollWidth > pre.clientWidth + 1)
    .map((pre) => `${pre.scrollWidth} of ${pre.clientWidth} px: ${pre.textContent.slice(0, 80)}`);
  folded.forEach((each) => { each.open = false; });
  return clipped;
}"""
# Tables, pictures, code and equations of which a part is out of sight without a hint, or out of
# reach of the keyboard; and those that still hint when there is no more.
HIDDEN_REST = """async () => {
  const which = ".pst-scrollable-table-container, .picture, pre, mjx-container[display]";
  const boxes = [...document.querySelectorAll(`article :is(${which})`)]
    .filter((box) => box.checkVisibility());
  const fades = (box) => getComputedStyle(box).maskImage !== "none";
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const wide = (box) => box.scrollWidth > box.clientWidth + 1;
  const unlike = (box) => fades(box) !== wide(box) || (wide(box) && box.tabIndex !== 0);
  const still = async (wrong) => {  // a busy machine hears late that a box has scrolled
    for (let turn = 0; turn < 100 && boxes.some(wrong); turn++) await painted();
    return boxes.filter(wrong);
  };
  const wrong = await still(unlike);
  boxes.forEach((box) => { box.scrollLeft = box.scrollWidth; });
  wrong.push(...await still(fades));
  boxes.forEach((box) => { box.scrollLeft = 0; });
  await still(unlike);
  return wrong.map((box) => box.outerHTML.slice(0, 160));
}"""
# Contrast takes axe longer than all else together. But an element's colours follow from its tag,
# classes and style and those round it (and a row's from its being odd): two of a kind are enough,
# of all pages. (Of a single character axe cannot tell: so these are kinds of their own.) The others
# go, unless there are some of the two in them. Whether a link stands out in its text is asked there
# too: it is a question of colours.
FEW_OF_A_KIND = """(known) => {
  const odd = (row) => [...row.parentElement.children].indexOf(row) % 2;
  const own = (element) => [element.tagName, element.className, element.getAttribute("style"),
    element.tagName === "TR" && odd(element)].join(".");
  const kinds = new Map([[document.body, ""]]);
  const kind = (element) => {
    if (!kinds.has(element)) kinds.set(element, `${kind(element.parentElement)} ${own(element)}`);
    return kinds.get(element);
  };
  const texts = (element) => [...element.childNodes].filter((node) => node.nodeType === 3)
    .map((node) => node.data.trim()).join("");
  const held = Object.fromEntries(known.map((which) => [which, 2]));
  const kept = new Set();
  const more = [...document.querySelectorAll("body *")].filter((element) => {
    const text = texts(element);
    if (!element.checkVisibility() || !(text || !element.childElementCount)) return false;
    const which = `${kind(element)} ${text.length > 1}`;
    held[which] = (held[which] || 0) + 1;
    if (held[which] > 2) return true;
    for (let each = element; each; each = each.parentElement) kept.add(each);
    return false;
  });
  more.filter((element) => !kept.has(element)).forEach((element) => element.remove());
  return Object.keys(held).filter((which) => held[which] >= 2);
}"""
# Tabs fade from one scheme's colours to the other's; axe must not see them half way.
AT_ONCE = "*, ::before, ::after { transition: none !important }"
COLOURS = ["color-contrast", "link-in-text-block"]
CONTRAST = {"runOnly": COLOURS}
STRUCTURE = {"rules": {rule: {"enabled": False} for rule in COLOURS}}
# axe passes over what is folded, but takes its time: a stepper has all its frames there.
WITHOUT_FOLDED = """() => document.querySelectorAll("details:not([open]) > :not(summary)")
    .forEach((folded) => folded.remove())"""
# Half of a page's elements are coloured words of its code, in which axe would look for structure.
PLAIN_CODE = """() => {
  window.coloured = [...document.querySelectorAll(".highlight pre")]
    .map((code) => [code, [...code.childNodes]]);
  window.coloured.forEach(([code]) => { code.textContent = code.textContent; });
}"""
COLOURED_CODE = """() => {
  window.coloured.forEach(([code, words]) => code.replaceChildren(...words));
}"""
# The same content stands in a phone's frame and in a desk's, of which these pages have all parts.
FRAMES = {"book/index.html", "book/why.html", "notebooks/why.html"}
UNRENDERED_MATH = """() => [...document.querySelectorAll(".math")]
    .filter((math) => !math.querySelector("mjx-container") || math.querySelector("mjx-merror"))
    .map((math) => math.textContent)"""
# Without preload: it would read the style sheets again by a request that file:// forbids.
AXE = """async (rules) => {
  const { violations } = await axe.run({ resultTypes: ["violations"], preload: false, ...rules });
  const messages = (node) => node.any.map((check) => check.message).join(" ");
  return violations.flatMap(({ id, nodes }) => nodes.map(
    (node) => `${id}: ${node.target} ${node.html.slice(0, 200)} ${messages(node)}`));
}"""


Seen = dict[str, list[str]]  # what is wrong, by its kind, each with its page
Known = dict[tuple[int, int], list[str]]  # by the page's size: kinds of elements seen twice
PART = PAGES[::2]
KINDS = ["errors", "foreign requests", "raw math", "overhang", "misfit pictures"]
KINDS += ["clipped code", "hidden rest", "violations"]


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:  # noqa: F811
    """One for all: a window costs more than a page."""
    return new_page(browser, reduced_motion="reduce")


def resize(tab: Page, size: tuple[int, int]) -> None:
    tab.set_viewport_size({"width": size[0], "height": size[1]})


def open_page(tab: Page, name: str, size: tuple[int, int]) -> None:
    resize(tab, size)
    tab.goto((HTML / name).as_uri(), wait_until="load")
    tab.add_style_tag(content=AT_ONCE)
    tab.evaluate("window.MathJax?.startup?.promise")
    tab.evaluate("document.fonts.ready")
    tab.evaluate(AXE_SCRIPT)


def show(tab: Page, mode: str) -> None:
    tab.emulate_media(color_scheme=mode)
    tab.wait_for_selector(f"html[data-theme={mode}]")


def violations(tab: Page, mode: str, rules: object) -> list[str]:
    show(tab, mode)
    width = tab.evaluate("document.documentElement.clientWidth")
    return [f"{width} px, {mode}: {each}" for each in tab.evaluate(AXE, rules)]


@cache
def measures(file: str) -> tuple[float, float, float]:
    """A picture's width as drawn and the sizes of its smallest and largest letters, in pixels.

    Matplotlib draws a letter from an outline of 100 points, made smaller.
    """
    picture = ElementTree.parse(HTML / "_images" / file).getroot()
    small = r"scale\((0?\.\d+) -0?\.\d+\)$"
    scales = (re.search(small, each.get("transform", "")) for each in picture.iter())
    wide = float(picture.attrib["width"].removesuffix("pt"))
    letters = [100 * float(scale[1]) * 96 / 72 for scale in scales if scale]
    return wide * 96 / 72, min(letters, default=inf), max(letters, default=0)


def misfits(shown: Iterable[tuple[str, int, int, str]], right: tuple[int, int]) -> Iterator[str]:
    """Pictures whose letters are smaller or larger than is right, or taller than a screen."""
    for file, width, height, text in shown:
        drawn, *letters = measures(file)
        least, most = (each * width / drawn for each in letters)
        if least < right[0] - 0.1 or most > right[1] + 0.1:
            yield f"letters of {least:.1f} to {most:.1f} px: {text}"
        if right is ON_A_DESK and height > SCREEN:
            yield f"{height} px tall: {text}"


def measured(tab: Page) -> Iterator[tuple[str, Iterable[str]]]:
    """What is wrong with the size of anything on the page that is open, by its kind."""
    wide = tab.evaluate("document.documentElement.scrollWidth")
    yield "overhang", [f"{wide} px wide"] * (wide > PHONE[0])
    yield "overhang", tab.evaluate(STICKING_OUT)
    yield "raw math", tab.evaluate(UNRENDERED_MATH)
    yield "misfit pictures", misfits(tab.evaluate(SHOWN), ON_A_PHONE)
    yield "clipped code", tab.evaluate(CLIPPED.replace("article pre", "article pre:not(.columns)"))
    resize(tab, DESK)
    yield "misfit pictures", misfits(tab.evaluate(SHOWN), ON_A_DESK)
    yield "clipped code", tab.evaluate(CLIPPED)
    resize(tab, PHONE)


def checked(tab: Page, known: list[str]) -> Iterator[str]:
    """What axe finds on the page that is open."""
    tab.evaluate(WITHOUT_FOLDED)
    tab.evaluate(PLAIN_CODE)
    yield from violations(tab, "light", STRUCTURE)
    tab.evaluate(COLOURED_CODE)
    known[:] = tab.evaluate(FEW_OF_A_KIND, known)
    for mode in ("light", "dark"):
        yield from violations(tab, mode, CONTRAST)


def wrong(tab: Page, name: str, known: Known) -> Iterator[tuple[str, Iterable[str]]]:
    """What is wrong on a page, by its kind."""
    for size in (PHONE, DESK) if name in FRAMES else (PHONE,):
        open_page(tab, name, size)
        if size is PHONE:
            yield from measured(tab)
        for mode in ("dark", "light"):  # at night pictures have a wider ground
            show(tab, mode)
            yield "hidden rest", tab.evaluate(HIDDEN_REST)
        yield "violations", checked(tab, known[size])


@pytest.fixture(scope="module")
def seen(tab: Page, request: pytest.FixtureRequest) -> Seen:
    found: Seen = {kind: [] for kind in KINDS}
    known: Known = {PHONE: [], DESK: []}
    name = ""

    def note(kind: str, problems: Iterable[str]) -> None:
        found[kind] += [f"{name}: {each}" for each in problems]

    own = ("file:", "data:")
    tab.on("request", lambda it: note("foreign requests", [it.url] * (not it.url.startswith(own))))
    tab.on("requestfailed", lambda it: note("errors", [f"not loaded: {it.url}"]))
    tab.on("pageerror", lambda error: note("errors", [str(error)]))
    tab.on("console", lambda it: note("errors", [it.text] * (it.type == "error")))
    for name in request.module.PART:
        try:
            for kind, problems in wrong(tab, name, known):
                note(kind, problems)
        except Error as error:  # and on to the next page
            note("errors", [str(error)])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_page_has(kind: str, seen: Seen) -> None:
    assert not seen[kind], "\n".join(sorted(seen[kind]))


def test_words_in_code_that_are_pale_are_noticed(tab: Page) -> None:
    kinds = ["k", "n", "mi", "c1"]
    open_page(tab, "book/fsdp.html", DESK)
    tab.add_style_tag(
        content=f"article .highlight :is(.{', .'.join(kinds)}) {{ color: #88888880 !important }}"
    )
    tab.evaluate(FEW_OF_A_KIND, [])
    for mode in ("light", "dark"):
        found = violations(tab, mode, CONTRAST)
        assert {kind for kind in kinds for each in found if f'class="{kind}"' in each} == {*kinds}
        assert all(any(f'class="{kind}"' in each for kind in kinds) for each in found)


def test_code_has_thirteen_pixels_or_just_as_many_as_its_longest_line_needs(tab: Page) -> None:
    open_page(tab, "book/ddp.html", DESK)
    sizes = tab.evaluate("""[...document.querySelectorAll("article .highlight pre")]
        .filter((pre) => pre.checkVisibility() && !pre.closest(".cell_output"))
        .map((pre) => [parseFloat(getComputedStyle(pre).fontSize), pre.textContent])""")
    lengths = [max(map(len, text.splitlines())) for _, text in sizes]
    assert min(lengths) <= 80 < 95 < max(lengths), "short lines and long ones"
    for (size, _), length in zip(sizes, lengths, strict=True):
        assert 11.2 <= size < 13 if length > 90 else size == 13 or length > 80


def test_a_line_of_code_goes_on_further_in_on_a_phone(tab: Page) -> None:
    open_page(tab, "book/ddp.html", PHONE)
    code = tab.locator("article .highlight pre:visible").first
    assert code.evaluate("it => getComputedStyle(it).whiteSpace") == "pre-wrap"
    inner = tab.locator("article .highlight pre:visible .line[style]").first
    style = inner.evaluate(
        "it => [getComputedStyle(it).paddingLeft, getComputedStyle(it).textIndent]"
    )
    further, back = (float(each.removesuffix("px")) for each in style)
    begins = further + back  # it is as far in as its own spaces, and goes on further in
    assert 0 < begins < further
    resize(tab, DESK)
    assert code.evaluate("it => getComputedStyle(it).whiteSpace") == "pre"


def test_the_front_page_has_its_title_once_and_the_players_buttons_in_sight(tab: Page) -> None:
    open_page(tab, "book/index.html", (1440, 900))
    title = "Data-Parallel Training, Step by Step"
    assert tab.locator("h1, .navbar-brand", has_text=title).locator("visible=true").count() == 1
    expect(tab.get_by_text("Press Play.")).to_be_in_viewport(ratio=1)
    for button in ("Back", "Play", "Next"):
        found = tab.get_by_role("button", name=button, exact=True).first
        expect(found).to_be_in_viewport(ratio=1)


def test_the_contents_follow_a_reader_who_pages_down_and_buttons_show_their_focus(
    tab: Page,
) -> None:
    open_page(tab, "book/ring.html", DESK)
    tab.evaluate("""new Promise((done) => {
        document.addEventListener("scrollend", () => setTimeout(done, 100), { once: true });
        document.querySelector("#one-schedule-three-readings + *, #one-schedule-three-readings")
            .scrollIntoView({ behavior: "instant" });
        scrollBy({ top: 200, behavior: "instant" });
    })""")
    now = tab.locator("#pst-page-toc-nav a[aria-current]")
    expect(now).to_have_attribute("href", "#one-schedule-three-readings")
    tab.keyboard.press("Tab")
    for button in ("button.primary-toggle", ".dropdown-download-buttons > button"):
        tab.locator(button).first.focus()
        style = tab.locator(button).first.evaluate("it => getComputedStyle(it).outlineStyle")
        assert style == "solid", button


def test_an_enlarged_picture_can_be_read_by_day_and_at_night(tab: Page) -> None:
    open_page(tab, "book/ring.html", DESK)
    tab.locator("article figure .picture > img").first.click()
    dialog = tab.get_by_role("dialog", name="Fig. 4.1, enlarged")
    expect(dialog).to_be_visible()
    for mode in ("light", "dark"):
        found = violations(tab, mode, CONTRAST)
        assert not [each for each in found if "dialog" in each]
        ground = dialog.evaluate("it => getComputedStyle(it).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (mode == "light")


def test_the_button_that_leads_back_to_the_top_can_be_read(tab: Page) -> None:
    open_page(tab, "book/ring.html", PHONE)
    for height in (4000, 2000):  # the button comes with an event on the way up
        tab.evaluate(
            """top => new Promise(done => {
                addEventListener("scroll", () => requestAnimationFrame(done), { once: true });
                scrollTo({ top, behavior: "instant" });
            })""",
            height,
        )
    expect(tab.locator("#pst-back-to-top")).to_be_visible()
    for mode in ("light", "dark"):
        found = violations(tab, mode, CONTRAST)
        assert not [each for each in found if "back-to-top" in each]


def test_a_long_name_in_a_heading_breaks_where_its_words_do(tab: Page) -> None:
    open_page(tab, "book/api/torch.html", PHONE)
    heading = tab.locator("h2", has_text="ZeroRedundancyOptimizer")
    assert "ZeroRedundancy<wbr>Optimizer" in heading.inner_html()


def test_words_that_were_searched_can_be_read_in_contents_and_text(tab: Page) -> None:
    open_page(tab, "book/ring.html", DESK)
    tab.evaluate("""const texts = document.querySelectorAll(".bd-links a, article :is(p, p a)");
    for (const each of texts) {
        if (each.childElementCount) continue;
        each.innerHTML = `<span class="highlighted">${each.textContent}</span>`;
    }""")
    for mode in ("light", "dark"):
        found = violations(tab, mode, CONTRAST)
        assert not [each for each in found if "highlighted" in each]


def test_links_that_do_not_stand_out_are_noticed(tab: Page) -> None:
    open_page(tab, "book/fsdp.html", PHONE)
    tab.add_style_tag(content="article p a * { color: #444 !important }")
    tab.add_style_tag(content="article p a { color: #444 !important; text-decoration: none }")
    found = " ".join(checked(tab, []))
    assert "link-in-text-block: " in found


def test_what_is_new_in_a_paragraph_of_a_known_kind_stays(tab: Page) -> None:
    tab.set_content("<p>one</p> <p>two</p> <p>three</p> <p>four <code>new</code></p>")
    tab.evaluate(FEW_OF_A_KIND, [])
    assert tab.locator("p").all_text_contents() == ["one", "two", "four new"]


def test_the_cheat_sheet_fits_on_two_sheets_of_paper(tab: Page) -> None:
    open_page(tab, "book/cheat.html", DESK)
    for paper in ("A4", "Letter"):
        pdf = tab.pdf(format=paper)
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2, paper
