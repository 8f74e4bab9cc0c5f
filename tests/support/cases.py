"""Many cases in one test: what came out of each beside what should have."""

from collections.abc import Mapping
from typing import Any


def alike(found: Mapping[Any, Any], right: Mapping[Any, Any]) -> None:
    """Comparison of many cases at once: an AssertionError lists all that came out wrong."""
    wrong = [
        f"{case}: got {found.get(case)}, expected {right.get(case)}"
        for case in {**right, **found}
        if case not in found or case not in right or found[case] != right[case]
    ]
    assert not wrong, "\n".join(wrong)
