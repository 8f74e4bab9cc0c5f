"""`python -m minidist.diagnose FOLDER`: what is wrong with the ranks that record there."""

import argparse

from minidist.diagnose.table import report


def main() -> None:
    """Print the report. On several hosts, run it on each: it asks the ranks of its own host."""
    parser = argparse.ArgumentParser(prog="python -m minidist.diagnose", description=__doc__)
    parser.add_argument(
        "places",
        nargs="+",
        help="where the ranks record: minidist.diagnose.record(FOLDER); or the dumps of PyTorch's "
        "flight recorder, or their folder",
    )
    args = parser.parse_args()
    try:
        print(report(args.places))
    except (FileNotFoundError, ValueError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
