"""The packages of kvsim, and where they are: the rest of the build is in `pyproject.toml`."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["kvsim", "kvsim.*"]),
        # A top-level package `tui` would be in other people's way.
        "kvsim_tui",
        *(f"kvsim_tui.{room}" for room in find_packages("tui")),
        "kvsim.traces",
    ],
    package_dir={"kvsim_tui": "tui", "kvsim.traces": "traces"},
)
