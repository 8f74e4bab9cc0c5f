"""A rank's journal: which case it runs and what it posts, which tells why ranks hang or abort.

A line is written before a message or a call is posted, and outlives the process. The grader reads
all journals when a launch has failed without an exception.
"""

import json
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import torch.distributed as dist

from course.ask.switchboard import Call, Part, Switchboard
from course.ask.verdict import Wrong, learners, learners_line

_file: IO[str] | None = None
_case = ""
_calls: list[tuple[str, str]] = []  # of the case: the name of each, and the learner's line


class Post(NamedTuple):
    """A message to or from a peer, or with no peer a call that all ranks make."""

    case: str
    name: str  # "isend", "irecv", or the call's
    peer: int
    nbytes: int
    where: str  # such as "ring.py, line 60"; "" where it is not known

    @property
    def text(self) -> str:
        """As a sentence names it: "irecv from rank 0 (ring.py, line 60)"."""
        size = f" of {self.nbytes:,} bytes" if self.nbytes else ""
        way = {"isend": f" to rank {self.peer}", "irecv": f" from rank {self.peer}"}
        place = f" ({self.where})" if self.where else ""
        return f"{self.name}{way.get(self.name, size)}{place}"


def begin(folder: Path) -> None:
    """Open this rank's journal in the folder."""
    global _file
    _file = (folder / f"{dist.get_rank()}.journal").open("w", buffering=1)


def begin_case(case: str) -> None:
    """What is written from now on belongs to this case."""
    global _case
    _case = case
    _calls.clear()


@contextmanager
def in_case(case: str, drawn: object) -> Iterator[None]:
    """What is posted within it belongs to this case. An error names that, the line, and `drawn`."""
    begin_case(case)
    try:
        yield
    except Wrong as wrong:
        line = line_of(wrong)
        line = f"{line}; " if line and line not in str(wrong) else ""
        raise Wrong(f"{place(case)}{wrong} ({line}{drawn})") from wrong
    except Exception as error:
        error.add_note(f'in case "{case}", {drawn}')
        raise


def place(case: str) -> str:
    """The beginning of a sentence about a case; which rank it is, `on_ranks` says."""
    alone = " on 1 rank" if dist.get_world_size() == 1 else ""
    return f'in case "{case}"{alone}, '


def write(name: str, peer: int = -1, nbytes: int = 0) -> str:
    """Write down what is posted next, with the learner's line, which it returns."""
    where = learners_line()
    _calls.append((name, where))
    if _file:
        print(json.dumps([_case, name, peer, nbytes, where]), file=_file)
    return where


def calls(first: int = 0, beside: bool = False) -> str:
    """A sentence on which lines have sent in this case, from a call on: "See ..."; or "".

    With `beside`, those that send messages beside a comm's calls.
    """
    within = {where for name, where in _calls if beside and name not in ("isend", "irecv")}
    kept = [call for call in _calls[first:] if call[1] and call[1] not in within]
    made = Counter(call for call in kept if call[0] != "irecv")
    each = [f"{where} ({many} times {name})" for (name, where), many in made.most_common(3)]
    return f" See {' and '.join(each)}." if each else ""


def end() -> None:
    """Note that this rank posts nothing more."""
    write("end")


def line_of(error: Exception) -> str:
    """The learner's innermost line that an error has come through; or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    return next(filter(None, (learners(f.filename, f.lineno) for f in reversed(frames))), "")


def read(folder: Path, ranks: int) -> tuple[list[list[Post]], set[int]]:
    """What each rank has posted, and the ranks that have come to their end."""
    every, ended = [], set[int]()
    for rank in range(ranks):
        path = folder / f"{rank}.journal"
        lines = path.read_text().splitlines() if path.exists() else []
        posts = [Post(*json.loads(line)) for line in lines if line.endswith("]")]
        if posts and posts[-1].name == "end":
            ended.add(rank)
            posts.pop()
        every.append(posts)
    return every, ended


def why(folder: Path, ranks: int, failure: str) -> str:
    """The reason why ranks hang or one was aborted, as a sentence; "" if it is not known."""
    every, ended = read(folder, ranks)
    if re.search(r"\bkilled by SIGABRT", failure):
        return unlike(every)
    return waiting(every, ended) if "did not end" in failure else ""


def unlike(every: Sequence[Sequence[Post]]) -> str:
    """The first message that its sender and its receiver do not call equally long; or ""."""
    for sent, received in pairs(every):
        if sent.nbytes != received.nbytes:
            return (
                f"{of_case(received)}rank {received.peer} sends {sent.nbytes:,} bytes to rank "
                f"{sent.peer}, which receives them into {received.nbytes:,}: sender and receiver "
                f"do not mean the same part. See {' and '.join({sent.where, received.where})}."
            )
    return ""


def pairs(every: Sequence[Sequence[Post]]) -> Iterator[tuple[Post, Post]]:
    """Each message as it is sent and as it is received: between two ranks they keep their order."""
    for receiver, posts in enumerate(every):
        for sender, others in enumerate(every):
            sent = [each for each in others if each.name == "isend" and each.peer == receiver]
            got = [each for each in posts if each.name == "irecv" and each.peer == sender]
            yield from zip(sent, got, strict=False)


def of_case(post: Post) -> str:
    """The beginning of a sentence about a case."""
    return f'in case "{post.case}", ' if post.case else ""


def waiting(every: Sequence[Sequence[Post]], ended: set[int]) -> str:
    """A sentence on who waits for whom; or "", as where a rank waits for nothing and runs on."""
    answered, errors = set[tuple[int, int]](), list[str]()

    def reply(rank: int, ticket: int, error: str, _: object) -> None:
        answered.add((rank, ticket))
        errors.append(error)

    board = Switchboard(len(every), reply)
    for rank, posts in enumerate(every):
        for ticket, post in enumerate(posts):
            board.post(rank, call_of(rank, ticket, post, range(len(every))))
    heard = [sum(who == rank for who, _ in answered) for rank in range(len(every))]
    case = next((of_case(posts[-1]) for posts in every if posts), "")
    for rank, posts in enumerate(every):
        open_ = [ticket for ticket in range(len(posts)) if (rank, ticket) not in answered]
        received = [ticket for ticket in open_ if posts[ticket].name != "isend"]
        if rank in ended:
            board.end(rank)
        elif open_:
            first = (received or open_)[0]
            case = of_case(posts[first])
            board.stuck(rank, first, heard[rank])
    error = next(filter(None, errors), "")
    return error and f"{case}{error}."


def call_of(rank: int, ticket: int, post: Post, ranks: Sequence[int]) -> Call:
    """The call as the switchboard takes it: over Gloo each pair of ranks has its own channel."""
    if post.peer < 0:
        return Call(ticket, "", post.text, ranks, sign=f"{post.name} {post.nbytes}")
    sends = post.name == "isend"
    ends = (rank, post.peer) if sends else (post.peer, rank)
    return Call(ticket, ends, post.text, parts=[Part(post.peer, sends=sends)])
