"""Times of minidist beside torch's own, taken in turns in one run. `make bench`."""
