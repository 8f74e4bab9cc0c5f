"""ZeRO: state in shards."""
