"""The rules of scheduling and memory, stated once, in plain functions over records.

numba compiles the functions unchanged, or they run interpreted. From the ground up:

    records        what is kept             state          all of it, in one tuple     compiled       the door to numba
    linked_list    free queue, queue        prefix_cache   keys -> blocks              block_pool     ids, references
    kv_cache       tables over groups       host_swap      what leaves the GPU         drafting       drafted tokens
    extents        a contiguous range       reservations   one extent a sequence       memory         either of the two
    waiting_queue  who is next              scheduler      who computes what           static_batch   padded rectangles
    host_pool      slots on the host        host_jobs      copies under way            copies         when they end
    offload        what is copied when      tiered         queue and frees with it     running        what a step holds
    clock          host and GPU             in_flight      steps under way
    scheduling     vLLM's or SGLang's       sglang_scheduler  its passes          prefill_adder  who joins a prefill
    radix_tree     runs of tokens           token_slots    its free list          request_rows   token -> slot
    journal        what a recording says    radix_journal  the same of slots      totals         where slots go

    numba_types    records as numba sees them                   numba_linking  parts become one piece of machine code

    initialization  a workload becomes records              driver         an engine that is run, or stepped by hand

Nothing in here knows a file, SimPy or a command.
"""
