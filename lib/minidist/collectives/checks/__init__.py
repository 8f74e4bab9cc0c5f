"""What is refused before the first message: tensors, and calls on which the ranks disagree."""
