"""With --claims: the run fails if a claim's evidence did not run and pass.

Tests may run in several processes (pytest-xdist); the one that hears of all of them judges.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from course.pages.claims import load, unproven

CLAIMS = Path(__file__).parent / "book" / "claims.yml"
# Each rank imports the module of the test's function: what most of them need, and what takes long,
# the fork server loads once.
IMPORTED = [
    "pytest",
    "IPython.display",
    "nbformat",
    "torch.distributed.checkpoint.format_utils",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "course.project.costs",
]

passed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", action="store_true", help="ask every claim for its evidence")


def pytest_configure() -> None:
    # What needs a GPU is `python -m benchmarks.gpu`; here all comes out alike on every machine.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # What a shell has started in the background ignores Ctrl-C, and so do all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # tensors are so small that threads would only wait for each other
    gc.disable()  # collecting tests makes much and drops little: a third of its time went here


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    if process := sys.modules.get("minidist.launch.process"):
        process.PRELOAD[:0] = IMPORTED


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        passed.add(report.nodeid)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--claims"):
        claims = load(CLAIMS)
        missing = unproven(claims, passed)
        terminalreporter.section("claims")
        terminalreporter.line(f"{len(claims) - len(missing)} of {len(claims)} claims shown")
        for claim, evidence in missing.items():
            terminalreporter.line(f"{claim}: did not pass: {', '.join(evidence)}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    judge = session.config.getoption("--claims") and not hasattr(session.config, "workerinput")
    if judge and unproven(load(CLAIMS), passed):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder to name in TMPDIR: its path is short, since a socket in it has 107 bytes in all."""
    with tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
