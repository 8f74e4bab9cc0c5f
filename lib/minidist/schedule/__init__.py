"""A collective as data: one schedule, three readings.

A schedule says who sends which chunk to whom in which step, and whether the receiver adds or
overwrites; each algorithm is stated once, as a function that returns one. Everything else reads it:

- `traffic` *replays* it in one process: pictures, proofs, and the bytes of every rank. `replay` has
  the symbolic part, which the puzzles in the book's pages use too;
- `cost` *prices* it on a topology: seconds by latency, bandwidth and contention;
- `program` takes out one rank's part, which `minidist.collectives` *runs* between real ranks.

So what a page draws is what runs and what is priced. Nothing here imports torch.distributed.

`pipeline` does the same for a model in stages: which rank computes what when, as data.

To read in this order: `schedule`, `algorithms.ring`, `replay`, `traffic`, `cost`, `program`; then
any of `algorithms` (`direct`, `tree`, `doubling`, `pipeline`).
"""
