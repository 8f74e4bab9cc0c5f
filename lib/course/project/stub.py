"""The test of training on many ranks. `make grade ONLY=checks` says what it catches.

`check` runs on every rank, on two and on three, and must raise AssertionError on at least one of
them if training is not that of one process with the whole batch. It must pass a right DDP, ZeRO
and FSDP; then faults are planted in them, one at a time, and each that makes it raise counts. An
error of another kind, or a hang, does not.

You bring the model, the data, and the one process. `make` brings what is tested::

    trainer = make(net, optimizer)         # optimizer(parameters), such as
                                           # lambda parameters: SGD(parameters, lr=0.1)
    rows = trainer.rows(step, count)       # this rank's rows of a batch of `count`, which the
                                           # number of ranks must divide
    loss = loss_of(trainer.model(x[rows]), y[rows])
    norm = trainer.step(loss, max_norm)    # backward, average, clip, step, zero_grad; the
                                           # gradient's norm before clipping
    trainer.weights()                      # all parameters in full, by name; on every rank

All ranks start with rank 0's parameters and buffers, whatever `net` had on theirs. A buffer of
the model must not change while it trains.
"""

from collections.abc import Callable
from typing import Any


def check(make: Callable[..., Any]) -> None:
    """Raise AssertionError unless the trainer that `make` builds trains as one process does."""
    raise NotImplementedError
