"""Context parallelism: a long sequence, split."""
