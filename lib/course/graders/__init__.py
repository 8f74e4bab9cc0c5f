"""Graders of the exercises."""
