"""MapReduce on processes of this host."""
