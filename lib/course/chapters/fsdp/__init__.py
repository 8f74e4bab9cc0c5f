"""FSDP: units that are gathered when they are needed."""
