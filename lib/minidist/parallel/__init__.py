"""Wrappers that train one model on many ranks."""
