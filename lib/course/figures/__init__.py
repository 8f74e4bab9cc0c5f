"""Pictures that only the book needs, a file per chapter; what users need too is in `plots`."""

import matplotlib.pyplot as plt

from course.figures.algorithms import double_tree, floors, messages, pipeline, rounds
from course.figures.beyond import splits
from course.figures.charts import Curve, curves, grouped_bars, level, stacked_bars
from course.figures.choosing import Rung, budget, ladder, parts_at_peak, predicted, roofline
from course.figures.cluster import Life, async_save, lives, seats
from course.figures.collectives import before_after, in_a_row, mesh_sums, waiting
from course.figures.ddp import Travel, bucket_timeline, ddp_step, gradients
from course.figures.dimensions import who_talks
from course.figures.disagree import Run, batch_memory, disagreements, drift, last_calls
from course.figures.feeding import (
    batch_shares,
    epoch,
    masks,
    spreads,
    token_weights,
    two_paths,
    uneven,
)
from course.figures.fsdp import cuts, elements_kept, mesh, unit_life
from course.figures.gpus import (
    all_reduce_curves,
    bucket_sweep,
    failures,
    kernel_waits,
    memory_by_formula,
)
from course.figures.inside import balance, causal_blocks, dispatch, losses, split_block
from course.figures.keep_going import outer_path, presence, when_ranks_talk
from course.figures.map_reduce import after_a_death, map_shuffle_reduce, step_as_reduce
from course.figures.memory import GPT2_BLOCK, block_memory, rank_memory, step_memory
from course.figures.pipelines import pipelines
from course.figures.ring import chunk_tour, link_lanes, readings, ring_circle
from course.figures.traces import ddp_trace, dualpipe_trace, no_overlap_trace
from course.figures.which import byte_ticks, one_memory, ring_path, winners
from course.figures.why import filled, machine
from course.figures.zero import flat_layout, who_holds, zero_step

plt.rcParams["savefig.pad_inches"] = 0.02  # a page has margins of its own, and a phone no room
