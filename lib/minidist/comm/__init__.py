"""The calls that wrappers and Muon make."""
