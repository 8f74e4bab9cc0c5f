"""Autograd's way back through a module."""
