"""`python -m course.project [package] [milestone]`: grade the reader's project.

A milestone may be named by its file: "zero" for ZeRO-1 and ZeRO-2. The exit status is 0 if all that
was graded is right, 1 if something is not, 2 if there is no such milestone.
"""

import sys
from argparse import ArgumentParser

from course.ask.verdict import Verdict
from course.project.report import lines

if __name__ == "__main__":
    parser = ArgumentParser("course.project", description="Grade the reader's project.")
    parser.add_argument("package", nargs="?", default="mine")
    parser.add_argument("milestone", nargs="?", default="", help="or its file; all if left out")
    asked, verdicts = parser.parse_args(), dict[str, Verdict]()
    try:
        for line in lines(asked.package, asked.milestone, verdicts):
            print(line, flush=True)
    except ValueError as error:
        parser.error(str(error))
    sys.exit(not all(verdicts.values()))
