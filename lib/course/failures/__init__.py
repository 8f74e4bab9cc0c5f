"""The failure lab: what goes wrong between ranks, shown safely, in minidist and in PyTorch.

    from course.failures import CASES
    print(CASES["A rank hangs"].see("torch"))

A `Case` has a function that fails on all ranks, and one that is repaired.
"""

from course.failures import disagreeing, drifting, dying, saving
from course.failures.case import Case, Kit, Seen, see

CASES = {
    case.name: case for family in (dying, disagreeing, drifting, saving) for case in family.CASES
}

__all__ = ["CASES", "Case", "Kit", "Seen", "see"]
