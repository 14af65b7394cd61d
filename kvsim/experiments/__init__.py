"""Experiments of several runs.

ladder      the same requests served better and better, with one change on every rung
bands       sensitivity of figures to the error of the step times
validation  a recording's requests simulated, beside the measured figures
sweeps      a grid of settings as one table
workers     processes that make the runs of a sweep (on_loky, on_dask, on_ray; batches, interrupts)
fixed_order the most prefix hits that an eviction rule can reach
upgrades    effect of another release of vLLM on a load
"""
