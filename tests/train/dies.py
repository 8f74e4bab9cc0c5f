"""`python -m minidist.train`, but at its first start the last rank kills itself before step 5."""

import os
import signal

import torch.distributed as dist

from minidist.train import __main__ as command
from minidist.train.loop import Training

step = Training.step


def fatal(training: Training, number: int) -> float:
    last = dist.get_rank() == dist.get_world_size() - 1
    if last and number == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(training, number)


Training.step = fatal
command.main()
