"""What happened when, on every rank."""
