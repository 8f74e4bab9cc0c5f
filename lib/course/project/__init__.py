"""The project: the reader writes the ring, DDP, ZeRO and FSDP, and is graded and scored."""
