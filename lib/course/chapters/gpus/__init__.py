"""Measurements by others on GPUs."""
