"""The faults: in each a single line of the library is another one, as a real mistake would be.

When the library changes, `file`, `old` and `tests` follow it; what a mutant breaks stays the same.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault.

    Attributes:
        room: the part of the library that it is in.
        file: relative to the root of the repository.
        old: the line as it should be, without its indentation; it occurs once in the file.
        new: the line instead.
        tests: what should notice it, as pytest's targets.
        known: no test notices it yet.
    """

    room: str
    file: str
    old: str
    new: str
    tests: list[str]
    known: bool = False


MUTANTS = [
    # ---- schedule ----
    Mutant(  # the shorter slices come first
        "schedule",
        "lib/minidist/schedule/schedule.py",
        "return index * size + np.minimum(index, longer)",
        "return index * size + np.maximum(index - chunks + longer, 0)",
        ["tests/schedule/test_schedule.py", "tests/collectives/test_executor.py"],
    ),
    Mutant(  # only the first chunk of a run is looked at
        "schedule",
        "lib/minidist/schedule/schedule.py",
        "bad_chunk = (step.chunk < 0) | (step.chunk + step.width > chunks)",
        "bad_chunk = (step.chunk < 0) | (step.chunk >= chunks)",
        ["tests/schedule/test_schedule.py"],
    ),
    Mutant(  # what is still to be sent may be overwritten early
        "schedule",
        "lib/minidist/schedule/program.py",
        "return not (came or left)",
        "return not came",
        ["tests/schedule/test_schedule.py"],
    ),
    # ---- algorithms ----
    Mutant(  # sums turn back before they are complete
        "algorithms",
        "lib/minidist/schedule/algorithms/pipeline.py",
        "start = np.concatenate((up[::-1], ranks - 1 + up))",
        "start = np.concatenate((up[::-1], ranks - 2 + up))",
        ["tests/schedule/test_proof.py"],
    ),
    Mutant(  # a run of alike steps costs as much as one
        "algorithms",
        "lib/minidist/schedule/cost.py",
        "loads[tuple(busiest), _most(worker, step.width[step.reduce])] += times",
        "loads[tuple(busiest), _most(worker, step.width[step.reduce])] += 1",
        ["tests/schedule/test_cost.py"],
    ),
    # ---- launch ----
    Mutant(  # an echo gets the short time, a first failure the long one
        "launch",
        "lib/minidist/launch/launch.py",
        "grace = ECHO_GRACE if outcome.echo else GRACE",
        "grace = GRACE if outcome.echo else ECHO_GRACE",
        ["tests/launch/test_launch_failures.py"],
    ),
    Mutant(  # the check cannot be switched off from outside
        "launch",
        "lib/minidist/launch/launch.py",
        'return {"MINIDIST_CHECK": "1", **os.environ, **ours}',
        'return {**os.environ, **ours, "MINIDIST_CHECK": "1"}',
        ["tests/launch/test_launch.py", "tests/collectives/test_agreement.py"],
    ),
    Mutant(  # messages time out before the launcher can say who hangs
        "launch",
        "lib/minidist/launch/rank.py",
        "timeout=timedelta(seconds=timeout + SLACK),",
        "timeout=timedelta(seconds=timeout - SLACK),",
        ["tests/launch/test_launch_failures.py", "tests/launch/test_launch.py"],
    ),
    # ---- collectives ----
    Mutant(  # a root of a sub-group is taken for its global rank
        "collectives",
        "lib/minidist/collectives/call.py",
        "found = known.index(root)",
        "found = root",
        ["tests/collectives/test_values.py", "tests/collectives/test_groups.py"],
    ),
    Mutant(  # a rank inside the tree adds into the caller's tensor
        "collectives",
        "lib/minidist/collectives/tensor.py",
        "sums = flat.clone() if inside else flat",
        "sums = flat",
        ["tests/collectives/test_values.py", "tests/collectives/test_groups.py"],
    ),
    Mutant(  # a synchronous call does not wait for its turn
        "collectives",
        "lib/minidist/collectives/runtime/work.py",
        "if not (async_op or queue.busy()):",
        "if not async_op:",
        ["tests/collectives/test_work.py"],
    ),
    Mutant(  # a GPU's collective does not wait for what made its tensor
        "collectives",
        "lib/minidist/collectives/runtime/work.py",
        "task.called.block_current_stream()",
        "pass",
        ["tests/collectives/test_streams.py"],
    ),
    Mutant(  # each rank chooses by its own times, and maybe not as the others
        "collectives",
        "lib/minidist/collectives/tuner.py",
        'return max(float(each["seconds"]) for each in notes)',
        'return float(notes[dist.get_rank(group)]["seconds"])',
        ["tests/collectives/test_tuner.py"],
    ),
    # ---- shared memory ----
    Mutant(  # a block is overwritten while another rank still reads it
        "shared memory",
        "lib/minidist/collectives/shared_memory/segments.py",
        "BUFFERS = 3",
        "BUFFERS = 2",
        [
            "tests/collectives/test_shared_memory.py::test_calls_follow_each_other_without_mixing",
            "tests/collectives/test_shared_memory.py::test_any_size_dtype_and_op_in_many_blocks_and_every_rank_has_the_same_bits[3]",
        ],
    ),
    Mutant(  # those are blamed who have come
        "shared memory",
        "lib/minidist/collectives/shared_memory/segments.py",
        "return [r for r, seen in enumerate(self._seen) if (barrier - seen) & 0xFFFFFFFF == 1]",
        "return [r for r, seen in enumerate(self._seen) if (barrier - seen) & 0xFFFFFFFF == 0]",
        ["tests/collectives/test_agreement.py"],
    ),
    # ---- comm ----
    Mutant(  # the two halves go by the ring when shared memory was asked for
        "comm",
        "lib/minidist/comm/comm.py",
        'self._half = algorithm if algorithm in ("auto", "shared_memory") else "ring"',
        'self._half = algorithm if algorithm in ("auto",) else "ring"',
        ["tests/comm/test_comm.py"],
    ),
    Mutant(  # counted, a broadcast always comes from the first rank
        "comm",
        "lib/minidist/comm/comm.py",
        "call = partial(self._comm.broadcast, tensor, group_src)",
        "call = partial(self._comm.broadcast, tensor, 0)",
        ["tests/comm/test_comm.py"],
    ),
    # ---- mapreduce ----
    Mutant(  # (1,) and (1.0,) are equal, and go to different reducers
        "mapreduce",
        "lib/minidist/mapreduce/map_reduce.py",
        "number = zlib.crc32(repr([hash_partition(part, 2**61) for part in key]).encode())",
        "number = zlib.crc32(repr(key).encode())",
        [
            "tests/mapreduce/test_map_reduce.py::test_the_hash_is_alike_in_every_interpreter_and_for_equal_keys"
        ],
    ),
    Mutant(  # a task is tried once more than it may be
        "mapreduce",
        "lib/minidist/mapreduce/workers.py",
        "if failures[task] == self.attempts:",
        "if failures[task] > self.attempts:",
        [
            "tests/mapreduce/test_map_reduce.py::test_a_task_that_always_raises_is_named_with_its_worker_s_traceback",
            "tests/mapreduce/test_map_reduce.py::test_a_task_that_always_kills_its_worker_is_named",
        ],
    ),
    # ---- ddp ----
    Mutant(  # of several full buckets one leaves, the others wait for the next gradient
        "ddp",
        "lib/minidist/parallel/ddp/reducer.py",
        "while self.pending and self.pending[0].full:",
        "if self.pending and self.pending[0].full:",
        ["tests/ddp/test_reducer.py"],
    ),
    Mutant(  # parameters without a gradient are put where they hold up all buckets
        "ddp",
        "lib/minidist/parallel/ddp/bucket.py",
        "order = torch.tensor([*missing, *reversed(came)], device=named[0][1].device)",
        "order = torch.tensor([*reversed(came), *missing], device=named[0][1].device)",
        [
            "tests/ddp/test_unused.py::test_unused_parameters_are_in_the_last_bucket_after_the_rebuild"
        ],
    ),
    Mutant(  # what was used once counts as used for ever
        "ddp",
        "lib/minidist/parallel/ddp/ddp.py",
        "used, self._used = self._used, set()",
        "used = self._used",
        [
            "tests/ddp/test_unused.py::test_different_ranks_may_leave_out_different_parameters",
            "tests/ddp/test_unused.py::test_what_no_rank_used_keeps_its_bits",
        ],
    ),
    Mutant(  # a NaN of a rank that counts for nothing reaches all others
        "ddp",
        "lib/minidist/parallel/ddp/reducer.py",
        "if gradient is None or self.scale == 0:  # a rank that counts for nothing, NaN or not",
        "if gradient is None:",
        [
            "tests/ddp/test_unused.py::test_weights_give_the_mean_over_samples",
            "tests/ddp/test_join.py::test_uneven_inputs_come_to_what_torch_makes_of_them",
        ],
    ),
    Mutant(  # buffers come from the first rank that still has batches, not the last
        "ddp",
        "lib/minidist/parallel/ddp/ddp.py",
        "broadcast_coalesced(tensors, self.comm, self._going[-1] if self._going else 0)",
        "broadcast_coalesced(tensors, self.comm, self._going[0] if self._going else 0)",
        ["tests/ddp/test_join.py::test_uneven_inputs_come_to_what_torch_makes_of_them"],
    ),
    Mutant(  # evaluation runs with buffers that differ between ranks
        "ddp",
        "lib/minidist/parallel/ddp/ddp.py",
        "if sync and self.broadcast_buffers and (training or self._buffers_due):",
        "if sync and self.broadcast_buffers and training:",
        ["tests/ddp/test_traffic.py"],
    ),
    Mutant(  # a rank's error is taken from the mean of Q, not from its own
        "ddp",
        "lib/minidist/parallel/ddp/powersgd.py",
        "error = matrix - p @ q.T  # [Note: error feedback]",
        "error = matrix - p @ mean.T",
        [
            "tests/ddp/test_powersgd.py::test_what_is_applied_is_the_mean_projected_and_nothing_is_lost",
            "tests/ddp/test_powersgd.py::test_this_rank_s_own_error_stays_small_where_torch_s_grows",
        ],
    ),
    # ---- zero ----
    Mutant(  # flags of this rank alone decide which parameters nobody has used
        "zero",
        "lib/minidist/parallel/zero/slices.py",
        "for shard, flag in zip(shards, flags.tolist(), strict=True):",
        "for shard, flag in zip(shards, used, strict=True):",
        ["tests/zero/test_optimizer.py", "tests/proof/test_attacks.py"],
    ),
    Mutant(  # a second gradient in one backward counts N times
        "zero",
        "lib/minidist/parallel/zero/bucket.py",
        "place.add_(gradient, alpha=scale)",
        "place.add_(gradient)",
        ["tests/zero/test_checks.py::test_a_checkpointed_layer_that_is_used_twice"],
    ),
    Mutant(  # a rank that had no loss does not take part
        "zero",
        "lib/minidist/parallel/zero/slices.py",
        "if left or not self._reduced:  # stage 1; gradients of no_sync; a rank without a backward",
        "if left:",
        [
            "tests/zero/test_optimizer.py::test_gradients_add_up_over_backwards_with_and_without_no_sync",
            "tests/proof/test_attacks.py",
        ],
    ),
    Mutant(  # a moment is cut in another order than the parameter's memory has
        "zero",
        "lib/minidist/parallel/zero/state_dict.py",
        "mine[what] = bucket.part(value, parameter).clone()",
        "mine[what] = value.reshape(-1)[slice(*bucket.ranges[parameter])].clone()",
        [
            "tests/zero/test_state_dict.py::test_a_whole_state_goes_from_two_ranks_to_three_to_one_and_into_a_bare_optimizer"
        ],
    ),
    Mutant(  # a parameter that this rank alone has not used keeps its gradient of zeros
        "zero",
        "lib/minidist/parallel/zero/slices.py",
        "if not all(used):  # else the host need not wait for the answer",
        "if not any(used):",
        ["tests/zero/test_optimizer.py", "tests/proof/test_attacks.py"],
    ),
    # ---- fsdp ----
    Mutant(  # replicas are left out of the mean
        "fsdp",
        "lib/minidist/parallel/fsdp/unit.py",
        "ranks = self.comm.ranks * (self.replicate.ranks if self.replicate else 1)",
        "ranks = self.comm.ranks",
        ["tests/fsdp/test_hybrid.py"],
    ),
    Mutant(  # a parameter that no rank has used gets a gradient of zeros
        "fsdp",
        "lib/minidist/parallel/fsdp/param_group.py",
        "if now and shard.requires_grad:",
        "if shard.requires_grad:",
        ["tests/proof/test_attacks.py"],
    ),
    Mutant(  # gradients add up in the precision of the parameters
        "fsdp",
        "lib/minidist/parallel/fsdp/param_group.py",
        "gradient = before.to(self.reduce_dtype).add_(gradient)",
        "gradient = before.add_(gradient)",
        ["tests/fsdp/test_mixed_precision.py"],
    ),
    Mutant(  # what stayed whole is used again after the optimizer's step
        "fsdp",
        "lib/minidist/parallel/fsdp/unit.py",
        "if each.state is UnitState.KEPT:  # an optimizer may have updated the shards",
        "if each.state is UnitState.UNSHARDING:",
        ["tests/proof/test_attacks.py"],
    ),
    Mutant(  # a backward that records a graph frees the parameters it would need
        "fsdp",
        "lib/minidist/parallel/fsdp/unit.py",
        "if torch.is_grad_enabled():",
        "if False:",
        ["tests/fsdp/test_checks.py"],
    ),
    Mutant(  # nothing tells a backward that it reads freed memory
        "fsdp",
        "lib/minidist/parallel/fsdp/param_group.py",
        "increment_version(self.unsharded)",
        "pass",
        ["tests/fsdp/test_fully_shard.py::test_a_backward_through_freed_parameters_is_an_error"],
    ),
    # ---- sharding ----
    Mutant(  # one element too many for each rank, where they would divide evenly
        "sharding",
        "lib/minidist/parallel/sharding/layouts.py",
        "self.shard_numel = -(-self.numel // ranks)  #: elements of a slice",
        "self.shard_numel = self.numel // ranks + 1  #: elements of a slice",
        ["tests/sharding/test_layouts.py"],
    ),
    Mutant(  # a rank loads another one's shards
        "sharding",
        "lib/minidist/parallel/fsdp/unit.py",
        'self.owner = f"rank {self.comm.rank} of {self.comm.ranks}"  # of the shards',
        'self.owner = f"one of {self.comm.ranks} ranks"',
        ["tests/fsdp/test_state_dict.py"],
    ),
    # ---- autograd ----
    Mutant(  # a forward that returns a view of its input waits for a foreign gradient
        "autograd",
        "lib/minidist/parallel/autograd/backward.py",
        "if under is not None and under.grad_fn and under not in given:",
        "if under is not None and under.grad_fn:",
        ["tests/autograd/test_backward.py"],
    ),
    Mutant(  # two outputs in no_sync: the second one's gradient makes the ranks talk
        "autograd",
        "lib/minidist/parallel/autograd/backward.py",
        "elif sync and not self._sync:  # one loss of two forwards, the other in no_sync",
        "elif not self._sync:",
        ["tests/autograd/test_backward.py"],
    ),
    # ---- full_model ----
    Mutant(  # the norms of parts are put together by another norm than their own
        "full_model",
        "lib/minidist/parallel/full_model/full_model.py",
        "total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type).to(dtype)",
        "total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms)).to(dtype)",
        ["tests/full_model/test_clip_grad.py::test_it_clips_as_torch_does_in_one_process"],
    ),
    Mutant(  # what rank 0 has made does not go to the other rows
        "full_model",
        "lib/minidist/parallel/full_model/meta_device.py",
        "between = comms(module) if unit is None else [unit.comm, unit.replicate]",
        "between = comms(module) if unit is None else [unit.comm]",
        [
            "tests/full_model/test_meta_device.py::test_all_ranks_get_what_rank_0_has_made_and_can_train_it"
        ],
    ),
    # ---- memory ----
    Mutant(  # buckets beside the gradients, though these are views of them
        "memory",
        "lib/minidist/memory/predict.py",
        "buckets=replicated if with_ddp and not gradient_as_bucket_view else 0,",
        "buckets=replicated if with_ddp else 0,",
        ["tests/memory/test_memory.py"],
    ),
    Mutant(  # in ZeRO-2 one part is in flight instead of two
        "memory",
        "lib/minidist/memory/predict.py",
        "return alone + max(map(sum, zip(packed, [*packed[1:], 0], strict=True)), default=0)",
        "return alone + max(packed, default=0)",
        ["tests/memory/test_memory.py"],
    ),
    Mutant(  # FSDP: nothing of the gradients that are reduced meanwhile is counted
        "memory",
        "lib/minidist/memory/predict.py",
        "reducing = inside[place + 1].reducing if place + 1 < len(inside) else 0",
        "reducing = 0",
        ["tests/memory/test_memory.py"],
    ),
    # ---- profiler ----
    Mutant(  # what does not overlap counts as hidden less than nothing
        "profiler",
        "lib/minidist/profiler/spans.py",
        "max(0.0, min(end, until) - max(start, since))",
        "min(end, until) - max(start, since)",
        ["tests/profiler/test_timeline.py"],
    ),
    Mutant(  # an optimizer whose step raised is never seen again
        "profiler",
        "lib/minidist/profiler/timeline.py",
        "if self._step is None or self._step[0] is optimizer:",
        "if self._step is None:",
        ["tests/profiler/test_timeline.py"],
    ),
    # ---- plots ----
    Mutant(  # a third part stands on the second one alone
        "plots",
        "lib/course/figures/amounts.py",
        "bottom += amounts",
        "bottom = amounts",
        ["tests/course/test_figures.py"],
    ),
    Mutant(  # a block is labelled with sender and receiver exchanged
        "plots",
        "lib/course/figures/before_after.py",
        'text = f"{chunk // width}→{chunk % width}" if blocks else _sum(who, replay.ranks)',
        'text = f"{chunk % width}→{chunk // width}" if blocks else _sum(who, replay.ranks)',
        ["tests/course/test_before_after.py"],
    ),
    # ---- course ----
    Mutant(  # a deadlock is not seen when a rank has ended
        "course",
        "lib/course/sandbox/threads.py",
        "if not waiting or len(waiting) + len(self._ended) < self.ranks:",
        "if not waiting or len(waiting) < self.ranks:",
        ["tests/course/test_ring.py", "tests/course/test_collectives.py"],
    ),
    Mutant(  # the rate is one step ahead
        "course",
        "lib/course/training/loop.py",
        "return 1.0 if step >= warm else (1 + (scale - 1) * step / warm) / scale",
        "return 1.0 if step >= warm else (1 + (scale - 1) * (step + 1) / warm) / scale",
        ["tests/claims/test_feeding.py::test_warm_up_grows_from_one_rank_s_rate_to_the_scaled_one"],
    ),
]
