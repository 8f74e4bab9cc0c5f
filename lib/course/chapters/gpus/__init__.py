"""What others measured on GPUs."""
