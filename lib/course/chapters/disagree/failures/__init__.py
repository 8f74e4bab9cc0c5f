"""The failure lab: what goes wrong between ranks, shown safely, in minidist and in PyTorch.

    from course.chapters.disagree.failures import CASES
    print(CASES["A rank hangs"].see("torch"))

A `Case` has a function that fails on all ranks, and the diff that repairs it.
"""

from course.chapters.disagree.failures import disagreeing, drifting, dying
from course.chapters.disagree.failures.case import Case, Kit, Seen, see

# In the order of the lab: each is numbered by its function's name.
every = [*dying.CASES, *disagreeing.CASES, *drifting.CASES]
every.sort(key=lambda case: int(case.fails.__name__.removeprefix("case_")))
CASES = {case.name: case for case in every}

__all__ = ["CASES", "Case", "Kit", "Seen", "see"]
