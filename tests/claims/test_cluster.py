"""The claims of the chapter on clusters: where ranks meet, and which device each takes."""

import pytest
import torch
import torch.distributed as dist

import minidist


@pytest.mark.claim("C15")
def test_the_device_of_a_rank_is_its_local_rank_also_on_the_second_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on two nodes with four GPUs each; only the number of GPUs is made up."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("MINIDIST_DEVICE", raising=False)
    there = [torch.device("cuda", index) for index in range(4)]
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank % 4))
        assert minidist.device() == there[rank % 4]
        assert (torch.device("cuda", rank) in there) == (rank < 4), "by its rank it has none"


@pytest.mark.claim("F8")
def test_a_group_without_a_master_address_is_refused_and_with_one_it_meets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MASTER_ADDR expected, but not set"):
        dist.init_process_group("gloo", rank=0, world_size=1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")  # one that is free
    dist.init_process_group("gloo", rank=0, world_size=1)
    total = torch.ones(())
    dist.all_reduce(total)
    dist.destroy_process_group()
    assert total == 1
