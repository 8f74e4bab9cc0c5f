"""What the figures of several chapters draw with."""
