"""`python -m benchmarks.gpu`, from a checkout with nothing installed but torch and numpy."""

import sys

from benchmarks.gpu.library import find

if __name__ == "__main__":
    find()
    from benchmarks.gpu.command import main  # only now: it needs the library

    sys.exit(main())
