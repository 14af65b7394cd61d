"""Figures: recordings in, a matplotlib figure out, and a way to write it. Each reduces what it shows, none
simulates.
"""

from kvsim.plots.agreement import agreement
from kvsim.plots.comparisons import Point, hits_capacity, points_of_table, throughput_block_size, throughput_memory
from kvsim.plots.everything import (
    FIGURES,
    OF_A_PAIR,
    OF_A_SWEEP,
    OF_ONE,
    OF_SEVERAL,
    Plan,
    check_kind,
    figure_of,
    plans,
)  # fmt: skip
from kvsim.plots.files import may_save, save
from kvsim.plots.film import Film, film_of
from kvsim.plots.film_page import write_page
from kvsim.plots.film_picture import write_gif, write_mp4
from kvsim.plots.free_runs import free_runs
from kvsim.plots.ladder import ladder
from kvsim.plots.latency import latency
from kvsim.plots.lifetimes import lifetimes
from kvsim.plots.memory_map import memory_map
from kvsim.plots.occupancy import occupancy
from kvsim.plots.queue import queue
from kvsim.plots.race import race, write_race
from kvsim.plots.roofline import roofline
from kvsim.plots.style import STATE_LABELS, Picture, Purpose, Size, style
from kvsim.plots.waste_bars import waste_bars
from kvsim.plots.waste_over_time import waste_over_time

FILMS = {".gif": write_gif, ".mp4": write_mp4, ".html": write_page}
"""Functions that write a film, by the ending of the file's name."""

__all__ = [
    "FIGURES",
    "FILMS",
    "OF_A_PAIR",
    "OF_A_SWEEP",
    "OF_ONE",
    "OF_SEVERAL",
    "STATE_LABELS",
    "Film",
    "Picture",
    "Plan",
    "Point",
    "Purpose",
    "Size",
    "agreement",
    "check_kind",
    "figure_of",
    "film_of",
    "free_runs",
    "hits_capacity",
    "ladder",
    "latency",
    "lifetimes",
    "may_save",
    "memory_map",
    "occupancy",
    "plans",
    "points_of_table",
    "queue",
    "race",
    "roofline",
    "save",
    "style",
    "throughput_block_size",
    "throughput_memory",
    "waste_bars",
    "waste_over_time",
    "write_gif",
    "write_mp4",
    "write_page",
    "write_race",
]
