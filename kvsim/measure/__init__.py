"""Measure a machine card: the speed of a GPU, its links and its host, kernel by kernel, in less than 90 seconds.

PyTorch is enough. If vLLM can be imported, its attention and all-reduce are measured instead of PyTorch's, and the card
names them. This room knows no models, requests or engines: a card describes a machine.
"""

from kvsim.measure.machine_card import measure

__all__ = ["measure"]
