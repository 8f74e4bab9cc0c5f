"""Which algorithm is the fastest, and where."""
