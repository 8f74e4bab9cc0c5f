"""Tensor parallelism: the width of a layer, split."""
