"""MapReduce, and training as one."""
