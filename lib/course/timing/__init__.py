"""How long calls and steps take on real ranks."""
