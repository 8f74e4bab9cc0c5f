"""Graders of the first chapter: bytes of the state, and what fits."""

from functools import partial
from itertools import product

import torch

from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import draws, many, whole
from minidist.memory.state import FP32, MIXED, OPTIMIZERS, DtypePolicy, state

DTYPES = ("float64", "float32", "bfloat16", "float8_e4m3fn")


def _policies() -> list[DtypePolicy]:
    """The two usual ones, and some whose parts all differ, with and without a master."""
    draw, policies = draws(1), [FP32, MIXED]
    for number in range(4):
        names = draw.sample(DTYPES, 4)
        weights, gradients, copy, moments = (getattr(torch, name) for name in names)
        master = None if number % 2 else copy
        policies.append(DtypePolicy(" ".join(names), weights, gradients, master, moments))
    return policies


@Exercise
def bytes_per_parameter() -> Table:
    """Grade function(policy, optimizer): bytes of the state for each parameter."""
    one = partial(state, 1)
    return numbers(
        cases=[*product(_policies(), OPTIMIZERS)],
        right=lambda *case: one(*case).total,
        told=lambda policy, optimizer: f"For {optimizer} with the policy {policy.name!r}",
        slips={
            "Those are bits.": lambda *case: 8 * one(*case).total,
            "The master weights are missing.": lambda *case: one(*case).total - one(*case).master,
            "The optimizer's moments are missing.":
                lambda *case: one(*case).total - one(*case).moments,
            "The gradients are missing.": lambda *case: one(*case).total - one(*case).gradients,
            "Adam keeps two moments of each parameter.":
                lambda policy, name: one(policy, "momentum" if name == "adam" else name).total,
            "Not every part has the dtype of the weights.":
                lambda policy, name: (2 + OPTIMIZERS[name]) * one(policy, name).weights,
            "That is Adam's, and others keep fewer moments.":
                lambda policy, _: one(policy, "adam").total,
        },
        solved="for {cases} pairs of a policy and an optimizer. Adam takes "
        f"{state(1, FP32).total} bytes per parameter in fp32 and {state(1, MIXED).total} in mixed "
        "precision: the master copy costs what shorter weights and gradients save.",
    )  # fmt: skip


@Exercise
def largest() -> Table:
    """Grade function(gpu_bytes, ranks, policy, optimizer): most parameters that can be trained.

    By data parallelism on `ranks` GPUs of so many bytes each; only the state is counted.
    """
    draw = draws(2)
    cases = [*product((80 * 10**9, 10**6 + 7), (1, 8), (FP32, MIXED), ("adam", "sgd"))]
    cases += [
        (draw.randrange(10**4, 10**9), draw.randrange(2, 99), policy, draw.choice([*OPTIMIZERS]))
        for policy in _policies()
    ]

    def fit(size: int, _: int, policy: DtypePolicy, optimizer: str) -> int:
        return size // state(1, policy, optimizer).total

    return Table(
        cases=cases,
        right=fit,
        told=lambda size, ranks, policy, optimizer: (
            f"For {many(ranks, 'GPU')} of {size:,} bytes, with {policy.name} and {optimizer},"
        ),
        read=whole,
        expected="a whole number of parameters",
        show="{:,}".format,
        slips={
            "In data parallelism every rank holds all of it: memory does not add up.":
                lambda size, ranks, *how: fit(size * ranks, ranks, *how),
            "Each rank holds all of the state, not a share of it.":
                lambda size, ranks, *how: ranks * fit(size, ranks, *how),
            "That is Adam's, and this optimizer keeps fewer moments.":
                lambda size, ranks, policy, _: fit(size, ranks, policy, "adam"),
            "Only the weights were counted.":
                lambda size, _, policy, optimizer: size // state(1, policy, optimizer).weights,
        },
        otherwise=lambda answer, size, _, policy, optimizer: (
            "One more would fit as well."
            if state(answer + 1, policy, optimizer).total <= size
            else f"Their state takes {state(answer, policy, optimizer).total:,} bytes: too much."
        ),
        solved="One more parameter would not fit in any of {cases} cases, with one GPU or with "
        "several. Data parallelism buys time, not memory: all GPUs hold the same.",
    )  # fmt: skip
