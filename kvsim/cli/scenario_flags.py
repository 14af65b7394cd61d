"""Flags that all simulating commands share: machine, policies and requests. `kvsim.cli.scenario` evaluates them."""

from __future__ import annotations

from collections.abc import Callable

import click

from kvsim.cli.flag import Command, section, with_options
from kvsim.cli.machine_flags import tokens_or_auto
from kvsim.cli.options import bounded, flags_of
from kvsim.cli.workload_flags import workload_options
from kvsim.errors import UsageError
from kvsim.policies.settings import (
    LINK_SPEED,
    MACHINE,
    ContiguousSettings,
    ContinuousSettings,
    PagedSettings,
    StaticSettings,
)
from kvsim.policies.sglang import RadixSettings, SGLangSettings
from kvsim.setting_fields import Setting
from kvsim.sizing.machine_settings import MachineSettings

_PAGED, _SCHEDULING, _RADIX = "Paged cache", "Scheduling", "SGLang: radix cache"


def _refuse_swap_space(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError(
            "vLLM dropped --swap-space with its V1 engine, which computes preempted sequences again; "
            "--kv-offloading-size GIB is the host memory of vLLM 0.25.1, and --swap-gib GIB a model of the old swap."
        )


def _refuse_speculative_tokens(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        number = int(value) if value.isascii() and value.isdigit() else 3
        raise UsageError(
            "--speculative-tokens was removed; give vLLM's own flag: --speculative-config "
            f"""'{{"method": "ngram", "num_speculative_tokens": {number}}}'."""
        )


_SETTINGS = {
    name: option
    for settings, heading in (
        (MachineSettings, MACHINE),
        (PagedSettings, _PAGED),
        (ContiguousSettings, "Contiguous reservations"),
        (StaticSettings, "Static batches"),
        (RadixSettings, _RADIX),
        (SGLangSettings, _RADIX),
        (ContinuousSettings, _SCHEDULING),
    )
    for name, option in flags_of(settings, heading, {"max_model_len": tokens_or_auto}).items()
}
"""Decorators that add the flag of a setting to a command, by the name of the setting."""
_OF_SIZE = (
    *(name for name in flags_of(MachineSettings, MACHINE, {}) if name != "times"),
    *(
        "max_model_len",
        "block_size",
        "enable_prefix_caching",
        "hybrid_manager",
        "max_num_seqs",
        "max_num_batched_tokens",
        "speculative_config",
        "enable_lora",
        "max_loras",
        "max_lora_rank",
        "vllm",
    ),
)
"""Names of settings that decide the number of blocks."""
_REFUSED = (
    section(_PAGED)("--swap-space", hidden=True, expose_value=False, callback=_refuse_swap_space),
    section(_SCHEDULING)("--speculative-tokens", hidden=True, expose_value=False, callback=_refuse_speculative_tokens),
)
_DEFAULTS = section(_SCHEDULING)(
    "--defaults",
    type=click.Choice(["llm", "server"]),
    help="Source of default limits: vLLM's LLM class or its server.  [llm; server in kvsim fit]",
)
_MORE = (
    section(_PAGED)(
        "--kv-offloading-gb-per-s",
        type=float,
        callback=bounded(Setting(help="", **LINK_SPEED)),
        metavar="GB/S",
        help="Speed of the link to host memory each way. Requires --kv-offloading-size, or "
        "--enable-hierarchical-cache.  [from the machine card; 80% of PCIe 5.0 x16]",
    ),
    section(_SCHEDULING)(
        "--refuse-misfits",
        is_flag=True,
        help="Refuse and count requests that could never be served; otherwise an error.",
    ),
    section(_SCHEDULING)(
        "--check", is_flag=True, help="Verify at every step that all slots are accounted for (slower)."
    ),
)


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the flags of the settings `names` to a command."""
    return with_options(*(_SETTINGS[name] for name in names))


machine_options = with_options(settings_options(*_OF_SIZE), *_REFUSED, _DEFAULTS)
"""Decorator that adds the flags for a machine to a command."""
scenario_options = with_options(workload_options, *_SETTINGS.values(), *_REFUSED, _DEFAULTS, *_MORE)
"""Decorator that adds all flags of a simulation to a command."""
