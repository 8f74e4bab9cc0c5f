"""The claims of the chapter on feeding the ranks, each shown by a run."""

import io
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import minidist
from course.training import data, models
from course.training.loop import save, train, warm_up


def drawn(size: int, ranks: int, epoch: int | None = 0, **options: bool) -> list[list[int]]:
    """The samples of every rank."""
    found = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(size), ranks, rank, **options)
        if epoch is not None:
            sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def joined(parts: list[list[int]]) -> list[int]:
    return [sample for part in parts for sample in part]


@pytest.mark.claim("C3")
def test_shards_are_disjoint_only_if_the_size_is_a_multiple() -> None:
    for size, ranks in [(10, 4), (12, 4), (1797, 8), (7, 7), (3, 8), (1, 3), (100, 1)]:
        padded, dropped = joined(drawn(size, ranks)), joined(drawn(size, ranks, drop_last=True))
        assert set(padded) == set(range(size))
        assert len(padded) == -(-size // ranks) * ranks
        assert len(dropped) == len(set(dropped)) == size // ranks * ranks
        assert (len(set(padded)) == len(padded)) == (size % ranks == 0)


@pytest.mark.claim("C3")
def test_ten_samples_on_four_ranks_are_twelve() -> None:
    assert drawn(10, 4, shuffle=False) == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


@pytest.mark.claim("C4")
def test_without_set_epoch_every_epoch_has_the_same_order() -> None:
    sampler = DistributedSampler(range(50), 4, 1)
    loader = DataLoader(range(50), 5, sampler=sampler)  # type: ignore[arg-type,var-annotated]
    forgotten = [[batch.tolist() for batch in loader] for _ in range(3)]
    assert forgotten[0] == forgotten[1] == forgotten[2]
    told = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        told.append([batch.tolist() for batch in loader])
    assert told[0] == forgotten[0]
    assert len({str(each) for each in told}) == 3
    assert len({str(sorted(joined(each))) for each in told}) == 3, "and the same samples"


@pytest.mark.claim("C8")
def test_one_seed_drops_the_same_units_on_every_rank() -> None:
    def masks(own: bool) -> tuple[torch.Tensor, torch.Tensor]:
        rank = dist.get_rank()
        torch.manual_seed(rank if own else 0)
        net = torch.nn.Linear(16, 16)
        model = minidist.DistributedDataParallel(net)
        torch.manual_seed(rank if own else 0)
        dropped = functional.dropout(torch.ones(6, 16), 0.5) == 0
        return model.module.weight.detach(), dropped

    for own, different in ((False, 6), (True, 18)):
        weights, dropped = zip(*minidist.launch(masks, 3, own, device="cpu"), strict=True)
        assert all(torch.equal(each, weights[0]) for each in weights), "broadcast in any case"
        assert len(torch.cat(dropped).unique(dim=0)) == different


@pytest.mark.claim("C12")
def test_training_with_and_without_scaling_where_the_rule_holds_and_where_it_ends() -> None:
    images, labels = (part[:1280] for part in data.digits())

    def final(k: int, rate: float) -> float:
        """The loss after 12 epochs with the batch of k ranks: as they would, see the next test."""
        torch.manual_seed(0)
        net = models.mlp()
        optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        order = torch.cat([torch.randperm(1280) for _ in range(12)])
        for batch in order.view(-1, 32 * k):
            optimizer.zero_grad()
            functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
        return functional.cross_entropy(net(images), labels).item()

    one = final(1, 0.05)
    assert final(4, 0.05) > 2 * one, "without scaling it falls behind"
    assert final(4, 4 * 0.05) < 1.5 * one, "with scaling it does not"
    assert final(40, 40 * 0.05) > 5 * one, "with 40 ranks scaling fails"
    assert final(1, 2 * 0.05) < one / 2, "one rank's rate is not its best: the rule has slack"


@pytest.mark.claim("C12")
def test_ranks_and_micro_batches_train_as_one_process_with_the_effective_batch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    images, labels = (part[:320] for part in data.digits())

    def run(batch: int, micro: int) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        net, path = models.mlp((64, 16, 10)), tmp_path / f"{dist.get_world_size()}.pt"
        digits = TensorDataset(images, labels)
        options = {"batch": batch, "micro": micro, "epochs": 2, "warm": 4}
        losses = train(net, digits, path, scale=4.0, **options)
        saved = torch.load(path)  # every rank finds the last one
        assert saved["epoch"] == 1
        models.mlp((64, 16, 10)).load_state_dict(saved["model"])
        return losses, saved["model"]["1.weight"].flatten().tolist()

    (alone,) = minidist.launch(run, 1, 32, 1, device="cpu")
    for ranks, batch, micro in ((4, 8, 1), (2, 8, 2)):
        for losses, weights in minidist.launch(run, ranks, batch, micro, device="cpu"):
            assert losses == pytest.approx(alone[0], abs=1e-5)
            assert weights == pytest.approx(alone[1], abs=1e-5)
    assert alone[0][1] < alone[0][0] - 0.3
    said = capfd.readouterr().out.splitlines()
    assert len(said) == 3 * 2, "rank 0 alone speaks, once an epoch"


def test_warm_up_grows_from_one_rank_s_rate_to_the_scaled_one() -> None:
    rates = [0.1 * 8 * warm_up(step, 8, 7) for step in range(9)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8])
    assert warm_up(0, 8, 0) == 1


@pytest.mark.claim("C13")
def test_a_reader_finds_the_old_file_or_the_new_one_and_half_of_one_without_the_rename(
    tmp_path: Path,
) -> None:
    def found(path: Path) -> str:
        try:
            return str(torch.load(path)["version"])
        except (RuntimeError, EOFError):
            return "half"

    def save_slowly(aside: bool) -> list[str]:
        """What rank 1 finds when rank 0 has written half, and when it has written all."""
        path, whole = tmp_path / f"{aside}.pt", io.BytesIO()
        place = path.with_suffix(".new") if aside else path
        if dist.get_rank() == 0:
            torch.save({"version": "old", "weights": torch.zeros(500)}, path)
            torch.save({"version": "new", "weights": torch.ones(500)}, whole)
            place.write_bytes(whole.getvalue()[:1000])
        dist.barrier()
        reads = [found(path)]
        dist.barrier()
        if dist.get_rank() == 0:
            place.write_bytes(whole.getvalue())
            os.replace(place, path)
        dist.barrier()
        return [*reads, found(path)]

    def ours() -> list[float]:
        """What each rank finds right after `save`, again and again."""
        reads = []
        for version in range(20):
            save({"version": version + 100 * dist.get_rank()}, tmp_path / "ours.pt")
            reads.append(torch.load(tmp_path / "ours.pt")["version"])
            dist.barrier()
        return reads

    def run() -> None:
        assert save_slowly(aside=True) == ["old", "new"]
        assert save_slowly(aside=False) == ["half", "new"]
        assert ours() == list(range(20))
        assert sorted(each.name for each in tmp_path.iterdir()) == [
            "False.pt",
            "True.pt",
            "ours.pt",
        ]

    minidist.launch(run, 3, device="cpu")
