"""Fitted step-time models, on disk and by name, and the check whether a run left their fitted range.

profile       the times of one engine with one model on one GPU, and their transfer to another GPU
file          a profile as TOML
known         the profiles that come with kvsim (calibrated/)
extrapolation whether a simulation left the steps that its profile was fitted to
"""

from kvsim.profiles.coefficient_words import EXPLANATIONS
from kvsim.profiles.file import load, save
from kvsim.profiles.known import find, is_shipped, match, shipped
from kvsim.profiles.profile import ENGINES, Profile, Residual, carried, listed_name, served_name

__all__ = [
    "ENGINES",
    "EXPLANATIONS",
    "Profile",
    "Residual",
    "carried",
    "find",
    "is_shipped",
    "listed_name",
    "load",
    "match",
    "save",
    "served_name",
    "shipped",
]
