"""Answers to the capstone, which a handout does not have."""
