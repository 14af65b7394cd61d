"""Who listens to a run: a `RecordingBuilder`, which keeps everything, or a `Tally`, which adds up and forgets."""

from __future__ import annotations

from typing import TypeAlias

from kvsim.recording import RecordingBuilder
from kvsim.simulation.tally import Tally

Recorder: TypeAlias = RecordingBuilder | Tally
