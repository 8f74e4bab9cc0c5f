"""Why one GPU is not enough."""
