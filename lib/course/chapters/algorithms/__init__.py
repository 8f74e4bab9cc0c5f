"""Algorithms for all-reduce: messages, pipelines and trees."""
