"""Figures of recordings with matplotlib, and functions that write them. Figures reduce data; none simulates.

All take `purpose` (the medium), `size` (in inches; by default that of the medium) and `theme`. Comparisons of up to
four recordings take `names`. Figures raise UsageError for a wrong number of recordings, names or policies, and
RecordingError for recordings without steps or duration.
"""

from kvsim.plots.colors import Theme
from kvsim.plots.comparisons import RunPoint, points_of_table
from kvsim.plots.everything import FIGURES, OF_A_SWEEP, OF_SEVERAL, check_kind, figure_of, plans
from kvsim.plots.figure_files import FileOptions, may_save, save
from kvsim.plots.film import film_of
from kvsim.plots.film_page import write_page
from kvsim.plots.film_picture import write_gif, write_mp4
from kvsim.plots.picture import Picture
from kvsim.plots.race import write_race
from kvsim.plots.style import Purpose

FILMS = {".gif": write_gif, ".mp4": write_mp4, ".html": write_page}
"""Functions that write films, by file extension."""

__all__ = [
    "FIGURES",
    "FILMS",
    "OF_A_SWEEP",
    "OF_SEVERAL",
    "FileOptions",
    "Picture",
    "Purpose",
    "RunPoint",
    "Theme",
    "check_kind",
    "figure_of",
    "film_of",
    "may_save",
    "plans",
    "points_of_table",
    "save",
    "write_race",
]  # fmt: skip
