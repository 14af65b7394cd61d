"""The discrete-event simulation: a workload, a policy and a machine in, a recording out. The only room that imports
SimPy.
"""

from kvsim.simulation.arrivals import ProgressCallback
from kvsim.simulation.measured import Measured, Timeline
from kvsim.simulation.run import Machine, Options, measure, simulate

__all__ = ["Machine", "Measured", "Options", "ProgressCallback", "Timeline", "measure", "simulate"]
