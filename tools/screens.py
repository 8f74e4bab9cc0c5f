"""Photograph the built book for the README, by day and at night, and draw the card of its links.

What is seen is the book's own: the ring on its way, a puzzle with its verdict, a plan for a model.
The card is the ring's picture beside the title, as a site shows it where somebody links to a page.
"""

import io
from argparse import ArgumentParser
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Locator, Page, expect, sync_playwright

from course.puzzles.catalog import PUZZLES
from tools.chromium import FLAGS, PATIENCE, find_chromium

ROOT = Path(__file__).parent.parent
HTML = ROOT / "_build" / "html"
SCREENS = ROOT / ".github" / "screens"
CARD = ROOT / "book" / "_static" / "card.png"
WIDTH, HEIGHT = 620, 615  # of what is shown, in the page's pixels
SCALE, COLORS = 2, 96
TITLE = "Data-Parallel Training, Step by Step"
LINE = "From one message to DDP, ZeRO, FSDP and beyond, in code that you write and run on a laptop."
PAGE_OF_CARD = f"""<body style="margin: 0; width: 1200px; height: 630px; background: #fff;
    color: #1d2630; font-family: sans-serif; display: flex; align-items: center; gap: 40px">
<div style="flex: none; width: 500px; margin-left: 56px">
<h1 style="margin: 0 0 24px; font-size: 60px; line-height: 1.15">{TITLE}</h1>
<p style="margin: 0; font-size: 28px; line-height: 1.4; color: #56616d">{LINE}</p></div>
<img style="flex: none; width: 560px" src="data:image/png;base64,%s"></body>"""
BARE = "header, #pst-skip-link, .bd-header-article, #pst-back-to-top { display: none !important }"


def player(page: Page) -> Locator:
    """The ring, after four of its six steps."""
    shown = page.locator(".minidist-widget.choices")
    for _ in range(4):
        shown.get_by_role("button", name="Next").click()
    return shown


def puzzle(page: Page) -> Locator:
    """A schedule that somebody wrote, and what the page's judge says of it."""
    shown = page.locator("#write-all_gather")
    shown.get_by_role("button", name="Edit").click()
    shown.locator("textarea").fill(PUZZLES["all_gather"].solution or "")
    shown.get_by_role("button", name="Run").click()
    expect(shown.locator(".verdict")).to_contain_text("Right", timeout=PATIENCE)
    return shown


def plan(page: Page) -> Locator:
    """How a model can be trained on so many GPUs."""
    return page.locator("[data-widget=plan]")


# What a page shows, and down to which line of it.
SHOWN: dict[str, tuple[Callable[[Page], Locator], int]] = {
    "book/ring": (player, 570),
    "book/puzzles": (puzzle, 588),
    "book/choosing": (plan, HEIGHT),
}


def write(png: bytes, file: Path, least: int = 0) -> None:
    """Write the picture, at least so high, with few colors, which makes it small."""
    file.parent.mkdir(exist_ok=True)
    full = Image.open(io.BytesIO(png)).convert("RGB")
    padded = Image.new("RGB", (full.width, max(full.height, least)), full.getpixel((0, 0)))
    padded.paste(full)
    small = padded.quantize(COLORS, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    print(f"wrote {file.relative_to(ROOT)}, {file.stat().st_size / 1000:.0f} kB")


def photograph(page: Page, name: str, mode: str) -> None:
    """One page, in one of its schemes."""
    page.emulate_media(color_scheme=mode, reduced_motion="reduce")
    page.goto((HTML / f"{name}.html").as_uri())
    show, height = SHOWN[name]
    shown = show(page)
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    page.add_style_tag(content=BARE)
    box = shown.bounding_box()
    assert box, name
    top = page.evaluate("scrollY") + box["y"]
    clip: FloatRect = {"x": box["x"], "y": top, "width": box["width"], "height": height}
    file = SCREENS / f"{Path(name).name}-{mode}.png"
    write(page.screenshot(full_page=True, clip=clip), file, SCALE * HEIGHT)


def main() -> None:
    """All pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(playwright), args=FLAGS, timeout=PATIENCE
        )
        for mode in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": WIDTH + 40, "height": 900}, device_scale_factor=SCALE
            )
            for name in SHOWN:
                photograph(page, name, mode)
        picture = (SCREENS / "ring-light.png").read_bytes()
        card = browser.new_page(viewport={"width": 1200, "height": 630})
        card.set_content(PAGE_OF_CARD % b64encode(picture).decode())
        write(card.screenshot(), CARD)
        browser.close()


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    main()
