"""Splits inside a layer."""
