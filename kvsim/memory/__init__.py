"""Memory without simulated time: allocators, and the states of slots. It needs no engine, workload or files."""
