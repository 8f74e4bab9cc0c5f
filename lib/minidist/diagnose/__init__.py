"""Help when ranks disagree or hang: their last collectives, their stacks, one sentence.

Each rank runs inside `with minidist.diagnose.record("flight"):`. While they hang, or after they
have died, `python -m minidist.diagnose flight` says what is wrong.
"""

from minidist.diagnose.recorder import record
from minidist.diagnose.table import report

__all__ = ["record", "report"]
