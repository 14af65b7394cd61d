"""Continuous batching in machine code: the same decisions at the same times as step by step, every step by itself.

The engine of `kvsim.simulation.continuous`, over arrays instead of objects, compiled by numba, an optional part:
`kvsim[fast]`. Nothing is leapt over, and nothing needs to be: a step costs a microsecond or less. From the ground up:

    records    what is kept: sequences, blocks, steps, ...      jit        numba, with types
    engine     all of it, in arrays with names                  rings      lines in which anybody may stand anywhere
    pool       blocks, their free queue, the prefix cache       extents    a contiguous range
    memory     room for sequences in either                     journal    what a recording says of it
    waiting    the queue                                        scheduler  who computes what in the next step
    clocks     host and GPU: arrivals, steps, outputs
    packing    a workload becomes arrays                        slices     run them, a slice at a time
    results    arrays become a recording or its summary

The modules above the last line are compiled; what they do is described in those of `kvsim.memory`, `kvsim.scheduling`
and `kvsim.simulation` that they follow. The step times are not written a second time: `Roofline.step_time` itself is
compiled. Importing `drive` takes numba, half a second; `kvsim.simulation.choice` says when that pays, and reads only
what needs none.
"""
