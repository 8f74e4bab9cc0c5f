"""What pages of the book show."""
