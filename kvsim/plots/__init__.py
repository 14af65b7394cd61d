"""Figures: recordings in, a matplotlib figure out, and a way to write it. Nothing here computes what it shows."""

from collections.abc import Callable

from kvsim.plots.files import save
from kvsim.plots.memory_map import memory_map
from kvsim.plots.occupancy import occupancy
from kvsim.plots.style import Picture, Purpose, Size, style
from kvsim.plots.waste_bars import waste_bars
from kvsim.plots.waste_over_time import waste_over_time

FIGURES: dict[str, Callable[..., Picture]] = {
    "waste-bars": waste_bars,
    "waste-over-time": waste_over_time,
    "occupancy": occupancy,
    "memory-map": memory_map,
}
"""Name on the command line -> what draws it. `waste-bars` and `occupancy` take several recordings, the others one."""

__all__ = [
    "FIGURES",
    "Picture",
    "Purpose",
    "Size",
    "memory_map",
    "occupancy",
    "save",
    "style",
    "waste_bars",
    "waste_over_time",
]
