"""Distributed data parallel: replicas, and gradients averaged during backward."""
