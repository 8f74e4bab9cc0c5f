"""The collectives, before and after."""
