"""Choosing with numbers: hardware, sizes of a model, and what each strategy would take."""
