"""The ring, by hand."""
