"""MapReduce, and the sum of gradients as its shuffle."""
