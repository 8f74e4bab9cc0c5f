"""Beyond data parallelism."""
