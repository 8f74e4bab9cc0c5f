"""Submissions of a class, graded in processes of their own, with limits of time and memory."""
