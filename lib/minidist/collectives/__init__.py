"""A schedule between real ranks, under torch.distributed's names."""
