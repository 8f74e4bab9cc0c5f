"""`python -m minidist.train`: one training run, eight ways to spread it over the ranks."""
