"""Collectives of ranks on one host, through memory that they share."""
