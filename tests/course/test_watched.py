"""A comm that knows what it has gathered, and does not keep it."""

import torch

import minidist
from course.training.watched import Watched


def gathered() -> list[int]:
    comm = Watched(minidist.Ours(algorithm="shared_memory", check=False))
    first, second = torch.empty(4), torch.empty(8)
    found = [comm.gathered_bytes()]
    for whole in (first, second):
        comm.all_gather(whole, torch.ones(whole.numel() // 2))
        found.append(comm.gathered_bytes())
    del whole, second
    view = first[1:]
    del first
    found.append(comm.gathered_bytes())  # a view keeps all of it
    del view
    return [*found, comm.gathered_bytes(), comm.largest]


def test_it_counts_what_somebody_still_holds() -> None:
    assert minidist.launch(gathered, 2) == [[0, 16, 48, 16, 0, 32]] * 2
