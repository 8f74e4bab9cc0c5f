"""Ranks as processes of this host."""
