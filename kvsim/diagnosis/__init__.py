"""What happened to a server, why, and what would have helped.

A recording says when and to whom; the requests in it, simulated on the same server with one thing changed, say what a
change would have done. The metrics of a server alone say whether, not why: `kvsim.diagnosis.from_metrics`.
"""

from kvsim.diagnosis.diagnosis import Diagnosis
from kvsim.diagnosis.explain import diagnose
from kvsim.diagnosis.from_metrics import Glance, glance
from kvsim.diagnosis.losses import Admission, Loss, Spell, losses_of, spells_of
from kvsim.diagnosis.subject import load_of, server_of

__all__ = [
    "Admission",
    "Diagnosis",
    "Glance",
    "Loss",
    "Spell",
    "diagnose",
    "glance",
    "load_of",
    "losses_of",
    "server_of",
    "spells_of",
]
