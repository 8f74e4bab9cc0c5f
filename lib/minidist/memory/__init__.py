"""A rank's memory: predicted and measured."""
