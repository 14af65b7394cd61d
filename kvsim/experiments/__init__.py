"""Several runs, and what they say together.

ladder      the same requests served better and better, with one change on every rung
bands       how far figures move with the error of the step times
validation  a recording's own requests simulated, beside what was measured
sweeps      a grid of settings as one table
workers     where its runs are made (on_loky, on_dask, on_ray; batches, interrupts)
"""
