"""A picture of a page, as large as the window: by a click, or by a key."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import DESK, PHONE, Pages, site_of_the_book  # noqa: F401 (a fixture)

DRAWN = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='300' height='400'%3E"
    "%3Crect width='300' height='400' fill='%2356b4e9'/%3E%3C/svg%3E"
)
ARTICLE = f"""<article><figure id="fig-ring"><img alt="Four ranks." src="{DRAWN}" width="300">
<figcaption><p><span class="caption-number">Fig. 4.1 </span><span id="words">A ring.</span>
<a class="headerlink" href="#fig-ring">#</a></p></figcaption></figure>
<figure class="minidist-widget"><img alt="Played." src="{DRAWN}" width="300"></figure></article>"""


def opened(page: Page) -> dict[str, float]:
    """The box of the enlarged picture, once it is there."""
    expect(page.get_by_role("dialog", name="Fig. 4.1, enlarged")).to_be_visible()
    box = page.locator("dialog.enlarged img").bounding_box()
    assert box
    return dict(box)


def test_a_click_or_enter_fills_the_window_and_escape_returns(site: Pages) -> None:
    page = site.open(ARTICLE)
    before = page.locator("#fig-ring img").bounding_box()
    button = page.get_by_role("button", name="Enlarge Fig. 4.1")
    button.press("Enter")
    box = opened(page)
    assert before
    assert box["height"] > 1.5 * before["height"]
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 800, "the whole picture is seen"
    dialog = page.locator("dialog.enlarged")
    expect(dialog.get_by_role("img", name="Four ranks.")).to_be_visible()
    expect(dialog.locator("p")).to_have_text("Fig. 4.1 A ring.")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    assert page.locator("#words").count() == 1
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()
    page.locator("#fig-ring img").click()
    opened(page)
    dialog.locator("img").click()
    expect(dialog).to_be_hidden()


def test_only_pictures_can_be_enlarged_and_a_widget_keeps_its_clicks(site: Pages) -> None:
    page = site.open(ARTICLE)
    expect(page.get_by_role("button", name="Enlarge")).to_have_count(1)
    page.locator(".minidist-widget img").click()
    expect(page.locator("dialog.enlarged")).to_be_hidden()


def test_on_a_phone_it_is_twice_as_wide_and_scrolls_by_keys_too(site: Pages) -> None:
    page = site.open(ARTICLE, width=PHONE)
    page.locator("#fig-ring img").click()
    assert opened(page)["width"] > 1.5 * PHONE
    page.keyboard.press("Tab")
    scroller = page.locator("dialog.enlarged .picture")
    expect(scroller).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('dialog.enlarged .picture').scrollLeft > 0")


def test_it_can_be_read_at_night_and_by_a_screen_reader(site: Pages) -> None:
    for theme in ("light", "dark"):
        page = site.open(ARTICLE, width=DESK, theme=theme)
        page.locator("#fig-ring img").click()
        opened(page)
        drawn = page.locator("dialog.enlarged img").evaluate("it => getComputedStyle(it).filter")
        assert ("invert" in drawn) == (theme == "dark")
        rules = {
            "rules": {"color-contrast": {"enabled": False}},
            "preload": False,
        }  # colors: test_browsed
        found = Axe().run(page, "dialog.enlarged", rules).response["violations"]
        assert not found
