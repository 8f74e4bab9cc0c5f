"""Feeding the ranks: samples, batches and seeds."""
