"""Run every benchmark and record it: `python -m benchmarks`; some: `python -m benchmarks ddp`."""

import sys

from benchmarks import collectives, ddp, fsdp, launch, limit, ring, zero
from benchmarks.record import record

ALL = {
    "launch": launch.measure,
    "ring": ring.measure,
    "collectives": collectives.measure,
    "ddp": ddp.measure,
    "zero": zero.measure,
    "fsdp": fsdp.measure,
    "limit": limit.measure,
}

if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(ALL)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    for name in sys.argv[1:] or ALL:
        print(f"{name} ...")
        rows = ALL[name]()
        for row in rows:
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()))
        print(f"wrote {record(name, rows)}")
