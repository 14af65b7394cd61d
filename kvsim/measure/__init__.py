"""Measure a machine card: the speed of a GPU, its links and its host, kernel by kernel, in less than 90 seconds.

Step times of any model on this machine are computed from its card (`kvsim.steptime.reduction`). Measuring needs
PyTorch. If vLLM can be imported, its attention and all-reduce are measured instead of those of PyTorch and NCCL, and
the card names them. This package does not depend on models, requests or engines, because a card describes a machine.
"""

from kvsim.measure.machine_card import measure

__all__ = ["measure"]
