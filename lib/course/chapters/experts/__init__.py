"""Mixtures of experts, which live on different ranks."""
