"""The discrete-event simulation: a workload, a policy and a machine in, a recording out. The only room that imports
SimPy.
"""

from kvsim.simulation.arrivals import ProgressCallback
from kvsim.simulation.choice import EngineName
from kvsim.simulation.measured import Measured, Timeline
from kvsim.simulation.run import Machine, Options, measure, record, simulate

__all__ = [
    "EngineName",
    "Machine",
    "Measured",
    "Options",
    "ProgressCallback",
    "Timeline",
    "measure",
    "record",
    "simulate",
]
