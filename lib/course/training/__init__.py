"""Models, data and training loops of the labs."""
