"""FSDP's step on two lanes, a GPU and a network link, each of which does one thing at a time."""

from collections.abc import Callable, Sequence

from minidist.profiler.spans import Span

Seconds = Callable[[float], float]  # what a collective takes, by its bytes
SHARD, GRADIENT = 2, 4  # bytes per parameter: gathered in bf16, reduced in fp32
PASSES = (("forward", 2), ("backward", 4))  # operations per parameter and token


class Lane(list[Span]):
    """What a GPU or a link does, one thing after another, as spans of time."""

    @property
    def end(self) -> float:
        """When it has done all that it was given."""
        return self[-1].end if self else 0.0

    def do(self, lane: str, name: str, seconds: float, earliest: float) -> float:
        """Do this next, no earlier than that; return when it is done."""
        start = max(self.end, earliest)
        self.append(Span(0, lane, name, start, start + seconds))
        return self.end


def fsdp_step(
    units: Sequence[float],
    tokens: float,
    rate: float,
    gather: Seconds,
    scatter: Seconds,
    *,
    prefetch: bool = True,
    keep: bool = False,
) -> list[Span]:
    """Predict forward and backward, without the optimizer.

    For each unit: gather its weights, and with `prefetch` the next unit's; compute once they are
    there; and in backward send off its gradients. `units`: parameters of each, in the order of
    forward; `gather`, `scatter`: bytes of a unit → seconds; `keep`: weights from forward on.
    """
    gpu, link = Lane(), Lane()
    here: dict[int, float] = {}  # a unit → when its weights have arrived
    places = range(len(units))
    for (phase, work), order in zip(PASSES, (places, places[::-1]), strict=True):
        here = here if keep else {}
        for place, unit in enumerate(order):
            for wanted in order[place : place + 1 + prefetch]:
                if wanted not in here:
                    seconds = gather(SHARD * units[wanted])
                    here[wanted] = link.do("all-gather", f"all-gather {wanted}", seconds, gpu.end)
            seconds = work * tokens * units[unit] / rate
            gpu.do("compute", f"{phase} {unit}", seconds, here[unit])
            if phase == "backward":
                seconds = scatter(GRADIENT * units[unit])
                link.do("reduce-scatter", f"reduce-scatter {unit}", seconds, gpu.end)
    return [*gpu, *link]


def took(spans: Sequence[Span]) -> float:
    """Seconds from the beginning to the last end."""
    return max(span.end for span in spans)
