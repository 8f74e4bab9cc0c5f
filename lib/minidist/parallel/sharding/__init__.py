"""Layouts: which parameters lie together, and which rank keeps which part."""
