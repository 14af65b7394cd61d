"""Step times for any model on any machine, and their usual error.

The best step times are a profile fitted to the model on its GPU. Next come a machine card measured on the same number
of such GPUs, kernel tables if they are installed, and other cards (see `kvsim.machines.choice`). Each kind of step
times has its own error, measured with recordings that no fit had seen (`errors.toml`).
"""

from kvsim.machines.cards import card_of, linked, sheet_card, shipped_cards
from kvsim.machines.choice import (
    KERNELS,
    card_named,
    from_card,
    in_batches_of,
    is_card,
    is_in_process,
    served_model,
    step_times,
)
from kvsim.machines.hosts import host_link, middle_host
from kvsim.machines.known_errors import (
    ADAPTERS_BY_CONSTANTS,
    DRAFTS_BY_CONSTANTS,
    IMAGES_BY_CONSTANTS,
    N_GRAMS_BY_CONSTANTS,
    Basis,
    class_in,
    class_of,
    includes_drafting,
    interval_in,
    known_errors,
    known_in,
    plain_words,
    untimed_in,
)

__all__ = [
    "ADAPTERS_BY_CONSTANTS",
    "DRAFTS_BY_CONSTANTS",
    "IMAGES_BY_CONSTANTS",
    "KERNELS",
    "N_GRAMS_BY_CONSTANTS",
    "Basis",
    "card_named",
    "card_of",
    "class_in",
    "class_of",
    "from_card",
    "host_link",
    "in_batches_of",
    "includes_drafting",
    "interval_in",
    "is_card",
    "is_in_process",
    "known_errors",
    "known_in",
    "linked",
    "middle_host",
    "plain_words",
    "served_model",
    "sheet_card",
    "shipped_cards",
    "step_times",
    "untimed_in",
]
