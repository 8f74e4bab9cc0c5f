"""ZeRO stages 1 and 2: sharded optimizer state and gradients."""
