"""The rendezvous of a run's ranks, also when torchrun starts them again.

torchrun keeps one store for its whole life, with the addresses of dead ranks in it. After a restart
new ranks may find those instead of their peers' and wait forever. So torchrun's store carries only
the port of a second one, which rank 0 makes anew in each life: see `fresh_store`.
"""

import os
import time
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from minidist.train.options import TrainError

KEY, ONE_SECOND = "minidist.train: rank 0's port", timedelta(seconds=1)


def meet(wait: timedelta) -> tuple[Store, int, int]:
    """The store by which the ranks find each other, this rank and the number of ranks."""
    meeting = Future[tuple[Store, int, int]]()

    def rendezvous_here() -> None:
        try:
            store, rank, ranks = next(rendezvous("env://", timeout=wait))
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                store = fresh_store(store, rank, ranks, wait)
            meeting.set_result((store, rank, ranks))
        except Exception as error:
            meeting.set_exception(error)

    # Another program's port accepts a connection and never answers: torch waits without end.
    Thread(target=rendezvous_here, daemon=True).start()
    try:
        return meeting.result(wait.total_seconds())
    except (dist.DistError, ValueError, TimeoutError) as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        why = str(error).splitlines()[0] if str(error) else f"no answer in {wait.seconds} s"
        raise TrainError(
            f"the ranks do not meet at {where} (MASTER_ADDR and MASTER_PORT): {why}"
        ) from error


def fresh_store(torchruns: Store, rank: int, ranks: int, wait: timedelta) -> Store:
    """A store without dead ranks in it: rank 0 makes it, and the others look for it.

    An address at which nobody answers is one of an earlier life. The number of the restart would
    not do as a prefix of keys in the old store: torchrun counts on each host its own.
    """
    host = os.environ["MASTER_ADDR"]  # torchrun gives rank 0 to the host that has its store
    if rank == 0:
        own = TCPStore(host, 0, ranks, True, wait, wait_for_workers=False)
        torchruns.set(KEY, str(own.port))
        return own
    while True:
        try:
            return TCPStore(host, int(torchruns.get(KEY)), ranks, False, ONE_SECOND)
        except dist.DistNetworkError:
            time.sleep(0.1)
