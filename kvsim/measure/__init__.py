"""Measure a machine card: what a GPU, its links and its host do, kernel by kernel, in less than 90 seconds.

PyTorch is enough; where vLLM is importable its attention and all-reduce are measured instead of PyTorch's, and the card
says which. Nothing here knows of models, requests or engines: a card is of a machine.
"""

from kvsim.measure.machine import measure

__all__ = ["measure"]
