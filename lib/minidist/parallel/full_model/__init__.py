"""The whole model again, whatever wraps it."""
