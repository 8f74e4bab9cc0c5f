"""What asks a learner's code: questions, verdicts, and the processes and ranks that it runs on."""
