"""A record of what happened when, on every rank."""
