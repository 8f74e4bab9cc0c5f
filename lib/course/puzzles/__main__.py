"""The stars of a class: `python -m course.puzzles FOLDER`, of files that *Your progress* exports.

A file is a learner's, by its name. Stars are not believed: each answer in the file is judged again.
"""

import csv
import sys
from argparse import ArgumentParser
from pathlib import Path

from course.puzzles.again import answers_in, judge_again
from course.puzzles.catalog import PUZZLES, stars_of


def stars_in(file: Path) -> dict[str, int]:
    """The stars that a learner's answers earn now; why one has none is said."""
    stars = dict[str, int]()
    try:
        answers = answers_in(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        print(f"{file.name}: {error}.", file=sys.stderr)
        return stars
    for name, code in answers.items():
        stars[name], why = judge_again(code, PUZZLES[name])
        if why:
            print(f"{file.stem}, {name}: {why}", file=sys.stderr)
    return stars


def main() -> None:
    """Print a table, most stars first, and write it as CSV where that is wanted."""
    parser = ArgumentParser(prog="python -m course.puzzles", description=__doc__)
    parser.add_argument("folder", type=Path, help="with a .json file for each learner")
    parser.add_argument("--csv", type=Path, help="file to write the stars of each puzzle into")
    given = parser.parse_args()
    files = sorted(given.folder.glob("*.json"))
    if not files:
        parser.error(f"there is no .json file in {given.folder}")
    board = [(file.stem, stars_in(file)) for file in files]
    board.sort(key=lambda row: -sum(row[1].values()))
    most, wide = sum(map(stars_of, PUZZLES.values())), max(len(name) for name, _ in board)
    for learner, stars in board:
        print(f"{learner:{wide}}  {sum(stars.values()):2} of {most}")
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["learner", *PUZZLES, "stars"])
            for learner, stars in board:
                each = [stars.get(name, 0) for name in PUZZLES]
                rows.writerow([learner, *each, sum(each)])


if __name__ == "__main__":
    main()
