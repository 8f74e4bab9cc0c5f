"""What is split inside a layer."""
