"""Timing of calls and steps on real ranks."""
