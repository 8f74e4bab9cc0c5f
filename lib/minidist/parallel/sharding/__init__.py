"""Which parameters lie together, and which rank keeps which part."""
