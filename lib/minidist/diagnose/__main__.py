"""`python -m minidist.diagnose FOLDER`: what is wrong with the ranks that record there."""

import argparse

from minidist.diagnose.verdict import report


def main() -> None:
    """Print the report. On several hosts, run it on each: it asks the ranks of its own host."""
    parser = argparse.ArgumentParser(prog="python -m minidist.diagnose", description=__doc__)
    parser.add_argument("folder", help="where the ranks record: minidist.diagnose.record(FOLDER)")
    args = parser.parse_args()
    try:
        print(report(args.folder))
    except (FileNotFoundError, ValueError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
