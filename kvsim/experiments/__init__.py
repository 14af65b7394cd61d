"""Experiments of several runs.

rungs        ablation: the same requests served in eight ways, each with one more feature of an engine
bands        sensitivity of figures to the error of the step times
recorded_run policy, memory and requests of a recording, to simulate it again
validation   simulation of a recording's requests, compared with the measurements
sweeps       simulations of many settings, as one table
workers      processes that run simulations in parallel; on_loky, on_dask and on_ray start them
batches      tasks that are sent to a worker process together
interrupts   protection of starting processes from Ctrl-C
fixed_order  the largest number of prefix hits that an eviction rule can reach
upgrades     effect of another release of vLLM on a load
"""
