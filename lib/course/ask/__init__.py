"""The graders' machinery: questions, verdicts, and the processes and ranks that run the code."""
