"""How all-reduce is done: messages, pipelines and trees."""
