"""The rules of scheduling and memory, each written once, as plain functions over records.

The functions run interpreted, or numba compiles them unchanged. This folder has what every server needs:

    state, records        the whole state as one tuple, and the record types in it
    clock, driver         the engine loop on two clocks; an engine that is run, or stepped by hand
    scheduling            the functions of a scheduler: vLLM's (`scheduler`) or SGLang's (`radix.sglang_scheduler`)
    memory                the functions of a memory manager: one for each folder below
    waiting_queue         who is admitted next
    fast_forward          sequences that only decode are skipped until a decision is due
    journal, totals       rows of a recording, and the sums of all slots by state
    initialization        a workload, a policy and a machine become records

One folder for each kind of memory, and one for compilation:

    paged                 vLLM's blocks: the pool, the prefix cache, block tables of several groups of layers
    host                  blocks that are copied to host memory and back
    connector             blocks whose contents come from a store or from other servers
    radix                 SGLang's radix tree, its slots, and its scheduler
    reserved              contiguous ranges, and padded rectangles
    custom                policies written in Python, and the optimal eviction
    machine_code          compilation by numba, and machine code on disk

Nothing in here knows a file, SimPy or a command.
"""
