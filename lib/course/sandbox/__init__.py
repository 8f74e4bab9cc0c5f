"""Where a learner's code is run."""
