"""Ranks that disagree, hang or die."""
