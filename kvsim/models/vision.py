"""Vision tower of an image model: the layers that compute an image.

The time of an image follows from the tower's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvsim.files.values import is_integer
from kvsim.models.config import Config

_CLASSES = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")
"""Beginnings of the classes of image models whose towers are known.

These towers merge square groups of patches into tokens.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """Shape of the layers that the patches of an image pass through."""

    num_layers: int
    num_full_layers: int
    """Number of layers in which patches attend to all patches of the image. In the others, they attend to a window."""
    hidden_size: int
    """Number of elements of a patch's hidden vector."""
    intermediate_size: int
    """Width of the feed-forward network."""
    has_gate: bool
    """True if the feed-forward network of a layer has a third matrix, the gate."""
    patches_per_token: int
    """Number of patches that are merged into one token."""
    window_patches: int
    """Number of patches in a window; 0 if no layer has windows."""


def vision_tower(config: Config) -> VisionTower | None:
    """Return the tower of an image model; None without a tower, or if its class is not known."""
    stated = config.fields.get("vision_config")
    names = config.texts("architectures") or ()
    if not isinstance(stated, dict) or not any(name.startswith(_CLASSES) for name in names):
        return None
    tower = Config(stated, f"vision_config of {config.where}")
    width = tower_width(tower)
    depth = tower.count("depth", default=0, least=0)
    if not depth or not width:
        return None
    inner = tower.count("intermediate_size", default=tower.count("mlp_ratio", default=4) * width)
    window = tower.count("window_size", default=0, least=0) // tower.count("patch_size", default=14)
    full = stated.get("fullatt_block_indexes")
    return VisionTower(
        num_layers=depth,
        num_full_layers=len(full) if window and isinstance(full, list) else depth,
        hidden_size=width,
        intermediate_size=inner,
        has_gate=stated.get("hidden_act") == "silu",
        patches_per_token=tower.count("spatial_merge_size", default=1) ** 2,
        window_patches=window**2,
    )


def tower_width(tower: Config) -> int:
    """Return the width of a tower's layers; 0 if not stated.

    Qwen2-VL states the width as `embed_dim`, and states the width of the tower's outputs as `hidden_size`.
    """
    return tower.count("embed_dim" if tower.states("embed_dim") else "hidden_size", default=0, least=0)


def tower_of(value: object) -> VisionTower | None:
    """Return the tower that `value` in the shape of a recording describes; None if it describes none."""
    if isinstance(value, VisionTower):
        return value
    names = {each.name: each.type for each in fields(VisionTower)}
    if not isinstance(value, Mapping) or set(value) != set(names):
        return None
    known: Mapping[str, Any] = value
    valid = all(
        isinstance(known[name], bool) if kind == "bool" else is_integer(known[name], 0) for name, kind in names.items()
    )
    return VisionTower(**known) if valid else None
