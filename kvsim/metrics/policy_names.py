"""What policies are called wherever people read: on the screen, in the ladder and in figures."""

from __future__ import annotations

from typing import Final

STATIC_BATCHES: Final = "static batches"
"""The one policy whose name in files and flags, `static`, does not say what it is."""


def policy_name(name: str) -> str:
    """The words for a policy that files call `name`; most, and rules of a user's own, are called so everywhere."""
    return STATIC_BATCHES if name == "static" else name
