"""Two hosts on one machine: they are gone afterwards; scripts that fail or hang are reported."""

import os
import sys
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from course.chapters.cluster import two_hosts as module
from course.chapters.cluster.two_hosts import (
    Forbidden,
    ToolMissing,
    cabled,
    loopback,
    torchrun,
    two_hosts,
)
from tests.support.processes import living, noted

SLOW = """
import time

print("step 1", flush=True)
time.sleep(2)
print("step 2")
"""
FAILS = "raise ZeroDivisionError('on purpose')"
HANGS = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w'); time.sleep(1000)"


def test_the_hosts_are_gone_afterwards_and_cannot_be_reached_from_here() -> None:
    if sys.platform != "linux":
        pytest.skip("network namespaces are Linux's")
    try:
        with cabled() as hosts:
            holders = {int(host.enter[host.enter.index("--target") + 1]) for host in hosts}
            assert len(holders) == 2
            assert all(host.interface == "eth0" for host in hosts)
            here = {os.readlink(f"/proc/{pid}/ns/net") for pid in (*holders, "self")}
            assert len(here) == 3, "three networks: two hosts, and ours"
    except ToolMissing as missing:  # in CI they must be there
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    except Forbidden as why:
        pytest.skip(f"this kernel forbids network namespaces: {why}")
    assert living(holders) == set()


def test_where_namespaces_are_forbidden_two_launchers_take_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolMissing, match="unshare, nsenter, ip"), cabled():
        pass
    with two_hosts() as (hosts, which):
        assert hosts == loopback()
    assert which.startswith("two launchers on the loopback interface, since needs unshare")


def test_a_script_that_fails_is_reported_with_its_node(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    with pytest.raises(RuntimeError, match=r"(?s)torchrun on node \d failed:.*on purpose"):
        torchrun(loopback()[:1], 1, str(script))


def test_who_waits_for_torchrun_hears_what_was_printed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert torchrun(loopback()[:1], 1, str(script)) == ["step 1\nstep 2\n"]
    assert capsys.readouterr().out == ""
    monkeypatch.delenv("TQDM_DISABLE")
    assert torchrun(loopback()[:1], 1, str(script)) == ["step 1\nstep 2\n"]
    said = capsys.readouterr().out
    assert "torchrun, after 0 s: nothing is printed yet\n" in said
    assert " s: step 1\n" in said


def test_a_script_that_hangs_is_stopped_with_its_ranks(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    pids = tmp_path / "pids"
    pids.mkdir()
    for timeout in (10, 60, 240):  # on a busy machine the script may take a while to begin
        if not noted(pids):
            with pytest.raises(TimeoutExpired):
                torchrun(loopback()[:1], 1, str(script), str(pids), timeout=timeout)
    assert len(noted(pids)) == 1
    assert living(noted(pids)) == set()
