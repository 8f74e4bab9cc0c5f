"""Several hosts, on one machine."""
