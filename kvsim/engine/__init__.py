"""The engine: the rules of scheduling and memory of a simulated server, as plain functions over records.

The functions run interpreted, or numba compiles them unchanged. This folder has the modules that all servers share:

    state, records        the whole state as one tuple, and the record types in it
    engine_settings       the record of settings
    recorded_rows         the rows that are recorded while an engine runs
    clock, driver         the engine loop with simulated time; the Python interface of an engine
    scheduling            the interface of a scheduler: vLLM's (`scheduler`) or SGLang's (`radix.sglang_scheduler`)
    memory                the interface of a kind of memory: one for each folder below
    waiting_queue         the queue of waiting sequences
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

The engine does not depend on files, SimPy or the command line.
"""
