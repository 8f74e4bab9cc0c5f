"""The reader's project, a module that grows to a ring, DDP, ZeRO and FSDP: its tests and scores."""
