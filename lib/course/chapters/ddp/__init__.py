"""DDP: buckets of gradients that travel during backward."""
