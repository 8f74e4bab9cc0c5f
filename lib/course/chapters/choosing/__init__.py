"""Choosing a strategy, and the ladder of memory."""
