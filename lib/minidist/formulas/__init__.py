"""Prices of a training step in closed form, and the only place for them.

- `inputs`: what they read, which in the page are plain objects;
- `models`: parameters, operations and activations of a model, from its shape;
- `memory`: bytes on a rank, of the state and at the peak of a step;
- `nccl`: seconds of a collective, by NCCL's own cost model at line rate;
- `links`: seconds of a collective by whatever is known of the links;
- `step`: a step as work on lanes, and what it takes;
- `grids`: all ways to place a model on ranks, and the fastest;
- `rules`: what such a search finds, said in advance;
- `update`: an optimizer that needs full matrices, Muon: its operations and bytes in a step;
- `muon`: the same with an owner for each single matrix;
- `refusals`: questions that make no sense.

Everything that prices asks here: the planner, the book's pages, its graders and its sliders, which
run these files in the page. So they import nothing but arithmetic, and `buckets`, `lanes`
and `steps` of `minidist.schedule`; their arguments are anything with the attributes that are named.
Bytes, seconds and operations throughout.
"""
