"""The claims of the chapter on ZeRO, each shown by a run."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

import minidist
from minidist.comm.counted import Counted
from minidist.comm.ours import Ours
from minidist.memory.state import MIXED, DtypePolicy, share, state

CAP = 1 / 1024  # MiB that close a bucket: layers of 16 x 16 doubles are twice as large
SHORT = DtypePolicy("without master", torch.bfloat16, torch.bfloat16, None, torch.float32)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    linears = (nn.Linear(16, 16, bias=False) for _ in range(4))
    return nn.Sequential(*(part for each in linears for part in (each, nn.Tanh()))).double()


def backward(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    batch = torch.randn(4, 16, generator=generator).double()
    model(batch).square().mean().backward()


class Watched(Counted):
    """Keeps what was all-gathered, and what came of it."""

    def __init__(self, comm: Ours) -> None:
        super().__init__(comm)
        self.gathered: list[tuple[torch.Tensor, torch.Tensor]] = []

    def all_gather(self, output: Any, input: Any, async_op: bool = False) -> Any:
        brought = input.clone()
        handle = super().all_gather(output, input, async_op)
        if handle:
            handle.wait()
        self.gathered.append((brought, output.clone()))
        return handle


# ---- D4 ----


@pytest.mark.claim("D4")
def test_what_is_gathered_is_the_parameters_after_the_step() -> None:
    nbytes = 8 * 4 * 16 * 16

    def run(gradients: str) -> None:
        comm, net = Watched(Ours(algorithm="ring")), network()
        model: nn.Module = minidist.DistributedDataParallel(net) if gradients == "averaged" else net
        options: dict[str, Any] = {"gradients": gradients, "bucket_cap_mb": CAP, "lr": 0.1}
        zero = minidist.ZeroOptimizer(net.parameters(), torch.optim.Adam, comm=comm, **options)
        for _ in range(2):
            zero.zero_grad()
            backward(model)
            comm.gathered.clear()
            zero.step()
        flat = {each.untyped_storage().data_ptr() for each in net.parameters()}
        now = torch.cat([p.detach().flatten() for p in net.parameters()]).sort().values
        whole = torch.cat([output for _, output in comm.gathered]).sort().values
        moments = [t for kept in zero.inner.state.values() for t in kept.values() if t.dim()]
        sent = [call.nbytes for call in comm.calls if call.name == "all_gather"][-len(flat) :]
        assert torch.equal(now, whole), "the new parameters, nothing else"
        assert not any(torch.equal(brought, m) for brought, _ in comm.gathered for m in moments)
        assert sum(sent) == nbytes, "with the two moments it would be three times as much"
        assert sum(m.nbytes for m in moments) == 2 * nbytes // 4, "those of this rank's slices"
        assert len(comm.gathered) > 1

    minidist.launch(lambda: [run("averaged"), run("local")], 4, device="cpu")


# ---- D7, D9 ----


@pytest.mark.claim("D2", "D7")
def test_70_billion_parameters_on_8_ranks_by_both_accountings() -> None:
    def totals(policy: DtypePolicy) -> list[float]:
        whole = state(70 * 10**9, policy)
        return [share(whole, 8, stage).total / 1e9 for stage in range(4)]

    assert totals(SHORT) == [840, 350, 227.5, 105]
    assert totals(MIXED) == [1120, 385, 262.5, 140]
    two = share(state(70 * 10**9, SHORT), 8, 2)
    assert (two.weights + two.moments) / 1e9 == 210, "without the slice of the gradients"


@pytest.mark.claim("D9")
def test_the_factor_grows_with_the_ranks_and_levels_off_unless_all_is_sharded() -> None:
    whole = state(2**40, MIXED)
    counts = [2**k for k in range(11)]
    for stage, limit in ((1, 4), (2, 8), (3, float("inf"))):
        factors = [whole.total / share(whole, n, stage).total for n in counts]
        assert factors == sorted(factors)
        assert factors[0] == 1
        assert factors[-1] < limit
        if stage < 3:
            assert factors[-1] > 0.98 * limit
        else:
            assert factors == counts


# ---- D8; what is sent is counted in tests/proof/test_traffic.py ----


@pytest.mark.claim("D8")
def test_torch_s_own_fsdp_makes_the_same_calls() -> None:
    """4 layers, each a unit, and the root with nothing of its own."""

    def run(drop: bool, gathers: int) -> None:
        net = network().float()
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, reshard_after_forward=drop)
        fully_shard(net)
        x = torch.randn(4, 16, requires_grad=True)
        with CommDebugMode() as seen:
            net(x).square().mean().backward()
        calls = {str(call): count for call, count in seen.get_comm_counts().items()}
        assert calls == {"c10d._allgather_base_": gathers, "c10d._reduce_scatter_base_": 4}

    minidist.launch(lambda: [run(True, 8), run(False, 4)], 2, device="cpu")
