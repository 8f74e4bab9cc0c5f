"""Pictures that only the book needs, from its chapters; what users need too is in `plots`."""

import matplotlib.pyplot as plt

from course.chapters.algorithms.figures import double_tree, floors, messages, pipeline, rounds
from course.chapters.beyond.figures import splits
from course.chapters.choosing.figures import (
    Rung,
    budget,
    ladder,
    predicted,
    roofline,
)
from course.chapters.cluster.figures import (
    Life,
    async_save,
    lives,
    seats,
    time_lost,
)
from course.chapters.collectives.figures import before_after, waiting
from course.chapters.ddp.figures import Travel, bucket_timeline, ddp_step
from course.chapters.disagree.figures import Run, disagreements, drift, last_calls
from course.chapters.experts.figures import balance, dispatch
from course.chapters.feeding.figures import (
    batch_shares,
    epoch,
    token_weights,
    two_paths,
)
from course.chapters.fsdp.ahead import ran_ahead, run_ahead
from course.chapters.fsdp.figures import cuts, elements_kept, mesh, unit_life
from course.chapters.gpus.figures import (
    all_reduce_curves,
    bucket_sweep,
    failures,
    kernel_waits,
)
from course.chapters.gpus.traces import (
    ddp_trace,
    dualpipe_trace,
    fsdp_traces,
)
from course.chapters.grid.figures import regimes, split_losses
from course.chapters.grid.frontier import Place, frontier
from course.chapters.keep_going.figures import loss_over_bytes, outer_path, presence
from course.chapters.map_reduce.figures import map_shuffle_reduce
from course.chapters.memory.figures import GPT2_BLOCK, block_memory, rank_memory, step_memory
from course.chapters.pipelines.figures import pipelines
from course.chapters.ring.figures import chunk_tour, link_lanes, ring_circle
from course.chapters.sequences.figures import ring_of_keys, ring_work
from course.chapters.tensor.figures import half_twice, losses, split_block, who_talks
from course.chapters.which.figures import one_memory, protocols, ring_path, winners
from course.chapters.why.figures import filled, machine, roofline_of
from course.chapters.zero.figures import flat_layout, who_holds
from minidist.plots.cells import stacked_bars
from minidist.plots.curves import Curve, byte_ticks, curves, grouped_bars

plt.rcParams["savefig.pad_inches"] = 0.02  # a page has margins of its own, and a phone no room
