"""The capstone: train the small GPT within a budget, on an emulated cluster."""
