"""Training that goes on when ranks die, or seldom talk."""
