"""A real launch on two hosts: network namespaces where the kernel allows them, else loopback."""

import json
import os
import sys
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from course.hosts.two_hosts import Forbidden, ToolMissing, cabled, loopback, torchrun, two_hosts
from tests.support.processes import living, noted

SCRIPT = Path(__file__).parents[2] / "scripts" / "ddp.py"
FAILS = "raise ZeroDivisionError('on purpose')"
HANGS = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w'); time.sleep(1000)"


# The script as it is, and at its end, in its group, every rank tells where it is.
TOLD = """
import json, runpy, sys
import torch.distributed as dist
from course.hosts.where_am_i import here
destroy = dist.destroy_process_group
def tell():
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, here())
    if dist.get_rank() == 0:
        print(json.dumps(everyone))
    destroy()
dist.destroy_process_group = tell
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.claim("C15", "F7")
def test_a_plain_script_trains_on_two_nodes_of_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    script = [str(tmp_path / "told.py"), str(SCRIPT), "--steps=10", "--batch=8"]
    with two_hosts() as (hosts, _):
        outs = torchrun(hosts, 2, *script, f"--checkpoints={tmp_path}", c10d=hosts[1])
    first, silent = sorted(outs, reverse=True)
    assert silent == "", "rank 0 tells for all"
    line, told = first.splitlines()
    assert line.startswith("step 10: loss 5.")
    parts = {path.name for path in (tmp_path / "step-00000010").iterdir()}
    assert parts == {".metadata", *(f"__{rank}_0.distcp" for rank in range(4))}
    everyone = json.loads(told)
    seats = [(node, local) for node in range(2) for local in range(2)]
    assert [(who["GROUP_RANK"], who["LOCAL_RANK"]) for who in everyone] == seats
    assert [who["RANK"] for who in everyone] == list(range(4))
    assert {(who["WORLD_SIZE"], who["LOCAL_WORLD_SIZE"]) for who in everyone} == {(4, 2)}
    addresses = [who["address"] for who in everyone]  # who is node 0, the launchers have agreed on
    order = hosts if addresses[0] == hosts[0].address else hosts[::-1]
    assert addresses == [order[node].address for node, _ in seats]
    assert {who["MASTER_ADDR"] for who in everyone} == {order[0].address}
    assert len({who["MASTER_PORT"] for who in everyone}) == 1
    assert {who["sum of ranks"] for who in everyone} == {sum(range(4))}, "messages went across"
    assert {who["backend"] for who in everyone} == {"gloo"}


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
