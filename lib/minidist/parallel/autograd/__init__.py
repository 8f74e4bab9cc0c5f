"""When autograd goes back through a module."""
