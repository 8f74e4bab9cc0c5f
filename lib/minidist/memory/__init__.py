"""What a rank holds: predicted and measured."""
