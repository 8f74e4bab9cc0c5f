"""Content for pages of the book."""
