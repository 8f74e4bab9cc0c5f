"""The first script of the book, `scripts/hello.py`, run as its reader runs it."""

import re
import subprocess
import sys

from course.pages.path import ROOT

LINE = r"process \d: loss [\d.]+, first weight -?\d\.\d{6}"


def hello() -> list[str]:
    """The line that each of its two processes prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = ["--nproc-per-node", "2", str(ROOT / "scripts" / "hello.py")]
    done = subprocess.run([*launcher, *script], capture_output=True, text=True, check=True)
    lines = sorted(re.findall(LINE, done.stdout))
    losses, weights = zip(*(line.partition(": ")[2].split(", ") for line in lines), strict=True)
    assert len({*losses}) == 2, lines
    assert len({*weights}) == 1, lines
    return lines
