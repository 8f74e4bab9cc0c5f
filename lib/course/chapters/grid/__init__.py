"""Which grid: rules for each way to split a model, and what a search finds."""
