"""The project: the reader writes the lesson's files, and is graded and scored."""
