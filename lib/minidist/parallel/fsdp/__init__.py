"""Fully sharded data parallel: parameters gathered one unit at a time."""
