"""Diagnosis of a server: preemptions and waiting requests, their causes, and settings that help.

A recording shows when requests lost their memory, and which requests. A simulation of the same requests with one change
shows the effect of the change. The metrics of a server only show that memory is short (`kvsim.diagnosis.from_metrics`).
"""

from kvsim.diagnosis.diagnosis import Diagnosis, diagnose
from kvsim.diagnosis.from_metrics import MetricsDiagnosis, diagnose_metrics
from kvsim.diagnosis.losses import Admission, Loss, Spell, losses_of, spells_of
from kvsim.diagnosis.retractions import RemedyRun, Retraction, retractions_of, try_remedies
from kvsim.diagnosis.subject import RUNS_BESIDE_CHANGES, engine_of, load_of, server_of

__all__ = [
    "RUNS_BESIDE_CHANGES",
    "Admission",
    "Diagnosis",
    "Loss",
    "MetricsDiagnosis",
    "RemedyRun",
    "Retraction",
    "Spell",
    "diagnose",
    "diagnose_metrics",
    "engine_of",
    "load_of",
    "losses_of",
    "retractions_of",
    "server_of",
    "spells_of",
    "try_remedies",
]
