"""Grade a class: each submission in processes of its own, with limits of time and memory."""
