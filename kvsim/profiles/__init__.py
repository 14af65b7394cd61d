"""Profiles: step times that were fitted to recordings of one engine with one model on one GPU.

profile       a profile, and its transfer to another GPU
file          reading and writing a profile as TOML
known         the profiles that come with kvsim (calibrated/)
extrapolation the check whether a simulation had steps outside the range to which its profile was fitted
"""

from kvsim.profiles.file import EXPLANATIONS, load, save
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
