"""Comparison of kvsim with a real engine, decision by decision, up to the first difference.

The real engine is in a recording of vLLM on a GPU (`verify_recording`), or it is an oracle (`verify_answer`). An oracle
is vLLM's or SGLang's own scheduler, which serves a workload with a fake model and records its decisions.
"""

from kvsim.conformance.answers import verify_answer
from kvsim.conformance.lockstep import verify_recording
from kvsim.conformance.oracle import verify_oracle
from kvsim.conformance.oracle_files import OracleWorkload, parse_workload, read_records, read_workload
from kvsim.conformance.verdict import Difference, Verdict, VerdictLine

__all__ = [
    "Difference",
    "OracleWorkload",
    "Verdict",
    "VerdictLine",
    "parse_workload",
    "read_records",
    "read_workload",
    "verify_answer",
    "verify_oracle",
    "verify_recording",
]
