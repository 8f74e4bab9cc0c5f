"""The four calls that wrappers make."""
