"""A folder for each chapter: the graders of its exercises, its figures and its widgets."""
