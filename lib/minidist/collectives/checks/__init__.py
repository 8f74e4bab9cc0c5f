"""Checks before the first message: of tensors, and that all ranks make the same call."""
