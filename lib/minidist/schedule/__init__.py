"""A collective as data, and what can be read from it without sending a message."""
