"""Which grid, or which strategy, without a line of Python.

    python -m minidist.planner search large H100 16384 --samples 2048
    python -m minidist.planner plan small H100 8 --batch 2 --json

MODEL is a job (small, medium or large), llama:LAYERS,WIDTH,HIDDEN,HEADS,KV_HEADS,VOCABULARY, or
mixture: with the same six, then EXPERTS,ACTIVE, and the width of a shared expert if there is one.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from minidist.formulas.inputs import ORDERS
from minidist.planner.hardware import FASTER
from minidist.planner.jobs import SEQUENCE, SHAPES, sized
from minidist.planner.planner import plan
from minidist.planner.search import search
from minidist.planner.sizes import Sizes
from minidist.schedule.checks import whole_number


class Parser(argparse.ArgumentParser):
    """A parser whose errors are a sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}\n")


def parser() -> Parser:
    plain = argparse.RawDescriptionHelpFormatter
    flags = Parser("python -m minidist.planner", description=__doc__, formatter_class=plain)
    commands = flags.add_subparsers(dest="command", required=True)
    grid = commands.add_parser("search", help="the fastest grids")
    grid.add_argument("--samples", type=int, required=True, help="of a step, of all ranks together")
    grid.add_argument("--orders", nargs="+", default=ORDERS, metavar="ORDER", help=f"{ORDERS}")
    grid.add_argument("--context", type=int, default=64, help="the most ranks of a sequence")
    strategy = commands.add_parser("plan", help="the strategies, and the one to take")
    strategy.add_argument("--batch", type=int, default=1, help="samples of a rank")
    for each in (grid, strategy):
        each.add_argument("model", help=f"{', '.join(SHAPES)}, llama:... or mixture:...")
        each.add_argument("hardware", help="such as H100")
        each.add_argument("ranks", type=int, help="GPUs")
        each.add_argument("--sequence", type=int, default=SEQUENCE, help="tokens of a sample")
        each.add_argument("--precision", default="bf16", help=f"of matrices: {', '.join(FASTER)}")
        each.add_argument("--optimizer", default="adam", help="sgd, momentum, adam or muon")
        each.add_argument("--fused-loss", action="store_true", help="never hold all logits")
        each.add_argument("--json", action="store_true", help="print JSON")
    return flags


def sizes_of(model: str, sequence: int) -> Sizes:
    """Sizes of a job, or of a shape that is spelled out."""
    if model in SHAPES:
        return sized(model, whole_number("sequence", sequence, 1))
    kind, _, numbers = model.partition(":")
    try:
        shape: list[Any] = [int(each) for each in numbers.split(",")]
    except ValueError:
        shape = []
    if kind == "llama" and len(shape) == 6:
        return Sizes.llama(*[*shape, sequence])
    if kind == "mixture" and len(shape) in (8, 9):
        own = dict(zip(("experts", "active", "beside"), shape[6:], strict=False))
        return Sizes.mixture(*[*shape[:6], sequence], **own)
    known = ", ".join([*SHAPES, "llama: with six numbers", "or mixture: with eight or nine"])
    raise ValueError(f"model: expected {known}, got {model!r}")


def main(given: Sequence[str] | None = None) -> None:
    """Print a search or a plan, or say in a sentence on stderr why there is none."""
    flags = parser()
    args = flags.parse_args(given)
    try:
        asked = sizes_of(args.model, args.sequence), args.hardware, args.ranks
        how: dict[str, Any] = {
            name: getattr(args, name) for name in ("precision", "optimizer", "fused_loss")
        }
        if args.command == "plan":
            found: Any = plan(*asked, batch=args.batch, **how)
        else:
            how |= {"orders": (*args.orders,), "context": args.context}
            found = search(*asked, args.samples, **how)
    except (ValueError, TypeError) as error:
        flags.error(str(error))
    if args.json:
        told = found.as_dict() if args.command == "search" else asdict(found)
        found = json.dumps(told | {"hardware": found.hardware.name}, indent=1)
    print(found)


if __name__ == "__main__":
    main()
