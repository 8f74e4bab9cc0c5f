"""`python -m benchmarks.gpu [SECTION ...]`: the same as `python -m benchmarks gpu ...`."""

import sys

from benchmarks.__main__ import main

sys.exit(main(["gpu", *sys.argv[1:]]))
