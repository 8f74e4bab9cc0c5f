"""Causal ring attention, step by step: which keys and values are where, and who has work."""

from collections.abc import Iterator

from course.interactive.frames import Cell, Frame, FramesChoice, FramesStepper, Rows, drawing
from from_scratch.context import pieces

RANKS = 4
EIGHTHS = 2 * RANKS  # parts of the sequence; in order, a rank has two that follow each other
LAYOUTS = {"in order": False, "zigzag": True}
LOOKS = {"held": "here, or computed now", "done": "computed before", "": "not here, or not seen"}
BLOCKS = ["its own block", "its left neighbor's", "the block from two to its left"]
BLOCKS += ["its right neighbor's block, which has gone around"]
Pair = tuple[int, int]  # an eighth of the queries, and one of the keys that it sees


def attention_stepper() -> FramesChoice:
    """Four ranks with a quarter of a sequence each, in order or in a zigzag."""
    title = f"Causal ring attention on {RANKS} ranks"
    several = {
        (name,): FramesStepper(title, [*_frames(zigzag)], LOOKS) for name, zigzag in LAYOUTS.items()
    }
    return FramesChoice(("Layout",), several)


def eighths(rank: int, zigzag: bool) -> list[int]:
    """The eighths of the sequence that a rank has."""
    if zigzag:
        return pieces(rank, RANKS, zigzag)
    return [2 * piece + half for piece in pieces(rank, RANKS, zigzag) for half in (0, 1)]


def computed(rank: int, step: int, zigzag: bool) -> list[Pair]:
    """The pairs that a rank computes in a step; steps count from 0."""
    here = eighths((rank - step) % RANKS, zigzag)
    return [(query, key) for query in eighths(rank, zigzag) for key in here if key <= query]


def _frames(zigzag: bool) -> Iterator[Frame]:
    done: list[set[Pair]] = [set() for _ in range(RANKS)]
    for step in range(-1, RANKS):  # before the first one, too
        rows, said, counts = Rows(), list[str](), list[int]()
        for rank in range(RANKS):
            here = eighths((rank - max(step, 0)) % RANKS, zigzag)
            now = set(computed(rank, step, zigzag) if step >= 0 else [])
            looks = dict.fromkeys(done[rank], "done") | dict.fromkeys(now, "held")
            block = [Cell("activations", "held" if key in here else "") for key in range(EIGHTHS)]
            seen = [
                [Cell("samples", looks.get((query, key), "")) for key in range(EIGHTHS)]
                for query in eighths(rank, zigzag)
            ]
            total = sum(len(computed(rank, each, zigzag)) for each in range(RANKS))
            rows[f"rank {rank}"] = [[block], seen, f"{len(looks)} of {total}"]
            said.append(f"Rank {rank} has computed {len(looks)} of {total} pairs.")
            counts.append(len(now))
            done[rank] |= now
        heads = ["keys and values", "scores of its queries", "pairs"]
        yield Frame(drawing(heads, rows, " ".join(said)), _says(step, counts))


def _says(step: int, counts: list[int]) -> str:
    """A sentence on a step in which each rank computes so many pairs."""
    if step < 0:
        return "Each rank has the queries, keys and values of two eighths of the sequence."
    idle = [str(rank) for rank, count in enumerate(counts) if not count]
    does = f"All have equally much to do: {counts[0]} pairs of eighths."
    if idle:
        who = " and ".join(filter(None, (", ".join(idle[:-1]), idle[-1])))
        does = f"Rank{'s' * (len(idle) > 1)} {who} may see nothing of it, and must wait."
    return f"Each rank has {BLOCKS[step]}. {does}"
