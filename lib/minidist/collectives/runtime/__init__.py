"""One rank runs its program of a schedule: messages, memory, and handles."""
