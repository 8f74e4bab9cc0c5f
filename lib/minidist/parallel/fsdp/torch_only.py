"""Arguments and methods of FSDP2 that minidist lacks, each with what to do instead."""

_PREFETCH = "the order of the last forward decides"
_MEAN = "gradients are means over the ranks; scale the loss"
_COMM = "fully_shard(..., comm=...) takes a Comm of your own"

INSTEAD = {
    "shard_placement_fn": "parameters are sharded along their first dimension",
    "offload_policy": "shards stay on the module's device",
    "ignored_params": "keep parameters that are not to be sharded outside of the module",
    "dp_mesh_dims": "pass a mesh of one dimension, or of two: (replicate, shard)",
    "set_modules_to_forward_prefetch": _PREFETCH,
    "set_modules_to_backward_prefetch": _PREFETCH,
    "set_unshard_in_backward": "every unit that backward reaches is gathered",
    "set_reshard_after_backward": "a unit is always resharded after its backward",
    "set_requires_all_reduce": "set_requires_gradient_sync(False) accumulates and sends nothing",
    "set_reduce_scatter_divide_factor": _MEAN,
    "set_gradient_divide_factor": _MEAN,
    "set_force_sum_reduction_for_comms": _MEAN,
    "set_reduce_scatter_unused_params": "a parameter that a rank does not use counts as zeros",
    "set_reduce_scatter_max_input_buffers": "two units' gradients are in flight at most",
    "set_post_optim_event": "an all-gather waits for the current stream",
    "set_all_reduce_hook": _COMM,
    "set_custom_all_gather": _COMM,
    "set_custom_reduce_scatter": _COMM,
    "set_allocate_memory_from_process_group_for_comm": _COMM,
    "set_symm_mem_for_comm": _COMM,
    "set_separate_reduce_scatter_group": _COMM,
}
