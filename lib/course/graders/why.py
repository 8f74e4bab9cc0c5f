"""Graders of the first chapter: bytes of the state, what fits, and who is where."""

from collections.abc import Callable
from itertools import product
from random import Random

import torch

from course.graders.cluster import Seat, check_seats
from course.verdict import Wrong, ask_as, check_numbers, formula, many, whole
from minidist.memory.state import FP32, MIXED, OPTIMIZERS, DtypePolicy, state

DTYPES = ("float64", "float32", "bfloat16", "float8_e4m3fn")


def _policies() -> list[DtypePolicy]:
    """The two usual ones, and some whose parts all differ, with and without a master."""
    draw, policies = Random(1), [FP32, MIXED]
    for number in range(4):
        names = draw.sample(DTYPES, 4)
        weights, gradients, copy, moments = (getattr(torch, name) for name in names)
        master = None if number % 2 else copy
        policies.append(DtypePolicy(" ".join(names), weights, gradients, master, moments))
    return policies


@formula
def bytes_per_parameter(function: Callable[[DtypePolicy, str], float]) -> str:
    """Grade function(policy, optimizer): bytes of the state for each parameter."""
    check_numbers(
        function,
        product(_policies(), OPTIMIZERS),
        lambda policy, optimizer: state(1, policy, optimizer).total,
        lambda policy, optimizer: f"For {optimizer} with the policy {policy.name!r}",
        _why_bytes,
    )
    return (
        f"for {len(_policies())} policies and {len(OPTIMIZERS)} optimizers. Adam takes "
        f"{state(1, FP32).total} bytes per parameter in fp32 and {state(1, MIXED).total} in mixed "
        "precision: the master copy costs what shorter weights and gradients save."
    )


def _why_bytes(answer: float, policy: DtypePolicy, optimizer: str) -> str:
    one = state(1, policy, optimizer)
    kept = OPTIMIZERS[optimizer]
    hints = [
        (8 * one.total, "those are bits"),
        (one.total - one.master, "the master weights are missing"),
        (one.total - one.moments, "the optimizer's moments are missing"),
        (one.total - one.moments // 2, "Adam keeps two moments of each parameter"),
        (one.total - one.gradients, "the gradients are missing"),
        ((2 + kept) * one.weights, "not every part has the dtype of the weights"),
        (state(1, policy, "adam").total, f"that is Adam's, and {optimizer} keeps fewer moments"),
    ]
    fitting = [hint for value, hint in hints if answer == value]
    return f" Perhaps {', or '.join(fitting)}." if fitting else ""


@formula
def largest(function: Callable[[int, int, DtypePolicy, str], int]) -> str:
    """Grade function(gpu_bytes, ranks, policy, optimizer): most parameters that can be trained.

    By data parallelism on `ranks` GPUs of so many bytes each; only the state is counted.
    """
    draw, policies = Random(2), _policies()
    cases = list(product((80 * 10**9, 10**6 + 7), (1, 8), (FP32, MIXED), ("adam", "sgd")))
    cases += [
        (draw.randrange(10**4, 10**9), draw.randrange(2, 99), policy, draw.choice([*OPTIMIZERS]))
        for policy in policies
    ]
    for size, ranks, policy, optimizer in cases:
        case = f"For {many(ranks, 'GPU')} of {size:,} bytes with {policy.name} and {optimizer} "
        expected = "a whole number of parameters"
        answer = ask_as(whole, expected, function, size, ranks, policy, optimizer, case=case)
        case += f"you say {answer:,}"
        if answer < 0:
            raise Wrong(f"{case}; expected {expected}.")
        held = state(answer, policy, optimizer).total
        if held > size:
            all_of_it = " In data parallelism every rank holds all of it: memory does not add up."
            why = all_of_it if ranks > 1 and held > size * (ranks - 1) else ""
            raise Wrong(f"{case}. Their state takes {held:,} bytes on every GPU: too much.{why}")
        if state(answer + 1, policy, optimizer).total <= size:
            raise Wrong(f"{case}. Their state takes {held:,} bytes; one more would fit as well.")
    return (
        f"One more parameter would not fit in any of {len(cases)} cases, with one GPU or with "
        "several. Data parallelism buys time, not memory: all GPUs hold the same."
    )


@formula
def seat(function: Callable[[int, int], Seat]) -> str:
    """Grade function(rank, per_node): the node of a rank, and its local rank there."""
    draw = Random(3)
    drawn = [(draw.randrange(2, 7), draw.randrange(2, 17)) for _ in range(4)]
    clusters = [(2, 4), (3, 8), (4, 1), (1, 5), *drawn]
    for nodes, per_node in clusters:
        asked = [(rank, per_node) for rank in range(nodes * per_node)]
        case = f"With {many(per_node, 'rank')} on each of {many(nodes, 'node')}"
        check_seats(case, [per_node] * nodes, function, asked)
    return (
        f"for every rank of {len(clusters)} clusters, from 1 node to {max(clusters)[0]}. A rank's "
        "device is its local rank: a node with four GPUs has no cuda:4."
    )
