"""Memory without simulated time: allocators, and the states of slots. The package needs no engine, no workload and no
files.
"""
