"""One command that checks and measures minidist on whatever GPUs are there.

    python -m benchmarks.gpu

It needs torch and numpy, takes less than eight minutes and writes results/gpu.json. To have it look
at something more, write a section and put it into `sections.ALL`.
"""
