"""Command-line flags made from the declared settings of dataclasses, and settings made from the given flags.

Each flag takes its name, help and bounds from the declaration of the setting (`kvsim.setting_fields`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from kvsim.cli.flag import Command, section
from kvsim.errors import UsageError
from kvsim.policies import EVERY_POLICY, KINDS, Paged, Radix, Static
from kvsim.policies.custom import is_policy_file
from kvsim.policies.settings import OF_PAGED
from kvsim.setting_fields import Declared, Setting, settings_in

Settings = TypeVar("Settings")
_LIMITS = ("max_num_seqs", "max_num_batched_tokens")
"""Limits whose defaults are those of `vllm serve` or of `LLM()`, as --defaults says."""
_APPLIES_LIKE = {"adapters": "enable_lora", "defaults": "max_num_seqs", "kv_offloading_gb_per_s": "load_gb_per_s"}
"""Flags that are no settings of a policy, each with a setting. The flag applies to the policies with this setting."""


def _checked_jobs(context: click.Context, parameter: click.Parameter, value: int) -> int:  # noqa: ARG001
    if not value:
        raise UsageError("--jobs should be at least 1, or -1 for one run on each core, not 0.")
    return value


jobs_option = click.option(
    "--jobs",
    type=click.IntRange(-1, 1000),
    callback=_checked_jobs,
    default=-1,
    show_default=True,
    help="Runs at a time; -1: one for each core.",
)


class PolicyParam(click.Choice[str]):
    """Type of a flag whose value is the name of a built-in policy, or a Python file with a policy."""

    def __init__(self) -> None:
        super().__init__(EVERY_POLICY)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value` if it is a name, or FILE.py or FILE.py:CLASS of a file that exists."""
        if is_policy_file(value):
            if not Path(value.partition(".py")[0] + ".py").is_file():
                self.fail(f"there is no file {value.partition('.py')[0]}.py.", param, ctx)
            return value
        return super().convert(value, param, ctx)


POLICY_HELP = "A built-in policy, or FILE.py:CLASS with one of your own."
engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "compiled", "interpreted"]),
    default="auto",
    show_default=True,
    help="Compiled or interpreted engine; auto: compiled for a large simulation.",
)


def flag_values(context: click.Context, option: click.Option, spelling: str, words: Sequence[str]) -> list[Any]:
    """Return the value of each word after a flag. The words of a switch are on and off.

    If `spelling` is the flag that turns the switch off, such as --no-check, on and off are exchanged.
    """
    if not option.is_flag:
        return [option.process_value(context, word) for word in words]
    switches_off = spelling in option.secondary_opts or (spelling in option.opts and option.flag_value is False)
    return [click.BOOL.convert(word, option, context) is not switches_off for word in words]


def bounded(
    bounds: Setting | None = None, *, at_least: float | None = None, at_most: float | None = None
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a click callback that refuses a number out of bounds with an error that names the flag.

    The bounds are those of the setting `bounds`, or else `at_least` and `at_most`; None means no bound.
    """
    known = bounds or Setting(help="", at_least=at_least, at_most=at_most)

    def check(_context: click.Context, option: click.Parameter, value: Any) -> Any:
        known.check(option.opts[0], value)
        return value

    return check


def flags_of(
    settings: type, heading: str, types: Mapping[str, Callable[[str], Any]]
) -> dict[str, Callable[[Command], Command]]:
    """Return decorators by name of a setting. Each adds the flag of its setting to a command, with the default None.

    They are made for the fields of the dataclass `settings` that declare a flag. `types` has a converter for each flag
    that accepts texts beyond the setting's type, such as "auto".
    """
    return {
        each.name: section(each.setting.section or heading)(
            each.name, *each.setting.flags, help=_help(each, settings), **_click_arguments(each, types.get(each.name))
        )
        for each in settings_in(settings)
        if each.setting.flags
    }


def _help(each: Declared, settings: type) -> str:
    is_switch = each.kind is bool and not each.choices and not has_off_flag(each)
    required = [other.setting.flags[0] for other in settings_in(settings) if other.name == each.setting.requires]
    requires = f" Requires {required[0]}." if required else ""
    return (
        (each.setting.flag_help or each.setting.help)
        + requires
        + (f"  [{each.default_words}]" if each.default_words and not is_switch else "")
    )


def _click_arguments(each: Declared, convert: Callable[[str], Any] | None) -> dict[str, Any]:
    if each.choices:
        return {"type": click.Choice(list(each.choices)), "default": None}
    if each.kind is bool:
        return {"default": None} | ({} if has_off_flag(each) else {"is_flag": True, "flag_value": not each.default})
    return {
        "type": convert or each.kind,
        "metavar": each.setting.unit,
        "default": None,
        "callback": bounded(each.setting),
        "shell_complete": _LISTED.get(each.name),
    }


def _listed_models(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    from kvsim.models import all_models

    names = [model.name for model in all_models()]
    return _beginning([*names, *(name.rpartition("/")[2] for name in names)], begun)


def _listed_gpus(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    from kvsim.hardware import GPUS

    return _beginning([gpu.name.replace(" ", "-") for gpu in GPUS], begun)


def _beginning(names: list[str], begun: str) -> list[str]:
    return [name for name in names if name.casefold().startswith(begun.casefold())]


_LISTED = {"model": _listed_models, "gpu": _listed_gpus}
"""Functions that complete the value of a flag in a shell, by the name of the setting."""


def settings_from(settings: type[Settings], flags: Mapping[str, Any], **known: Any) -> Settings:
    """Return an instance of `settings` with the values of the given flags.

    `known` values replace those of flags. Settings without a value keep their defaults.

    Raises:
        UsageError: a flag is given without another flag that its setting requires (`Setting.requires`).
    """
    kind: Any = settings
    declared = {each.name: each for each in settings_in(kind)}
    given = {name: value for name in declared if (value := flags.get(name)) is not None}
    for name in given:
        needed = declared[name].setting.requires
        if needed and not given.get(needed):
            flag, other = (spelling(declared[each]) for each in (name, needed))
            raise UsageError(f"{flag} requires {other}; give both.")
    values = {name: declared[name].choices.get(value, value) for name, value in given.items()}
    return settings(**values | known)


def has_off_flag(each: Declared) -> bool:
    """Tell whether a setting has two flags: one that turns it on, and one that turns it off."""
    return any("/" in flag for flag in each.setting.flags)


def spelling(each: Declared) -> str:
    """Return the first name of a setting's flag, as it is typed."""
    return each.setting.flags[0].rpartition("/")[2]


def check_policy_flags(context: click.Context, policies: Collection[str], varied: Collection[str] = ()) -> None:
    """Check that every given flag has an effect with at least one of `policies`.

    `varied` are flags whose values were given in another way, such as --vary.

    Raises:
        UsageError: a flag has no effect. The message names the policies that use it.
    """
    check_defaults(context, varied)
    based_on = {Paged.name if is_policy_file(policy) else policy for policy in policies}
    sizes_blocks = is_given(context, "num_blocks") or is_given(context, "gpu_memory_utilization")
    if is_given(context, "block_size") and based_on == {Radix.name} and not sizes_blocks:
        raise UsageError("--block-size has no effect with --policy radix; give --page-size, or leave it out.")
    for option in context.command.params:
        name = str(option.name)
        if name in varied or is_given(context, name):
            takers = policies_with(name)
            if takers and not takers & based_on:
                off = context.params.get(name) is False and option.secondary_opts
                raise UsageError(
                    f"{(off or option.opts)[0]} has no effect with --policy {' and '.join(policies)}: it is for "
                    f"{' and '.join(sorted(takers))}; leave it out."
                )


def check_defaults(context: click.Context, varied: Collection[str] = ()) -> None:
    """Check that --defaults has an effect if it is given: --max-num-seqs or --max-num-batched-tokens must be open.

    `varied` has the names of flags that a sweep varies, which count as given.

    Raises:
        UsageError: --defaults and both of these limits are given.
    """
    stated = [name for name in _LIMITS if name in varied or is_given(context, name)]
    if is_given(context, "defaults") and len(stated) == len(_LIMITS):
        limits = " and ".join(f"--{name.replace('_', '-')}" for name in _LIMITS)
        raise UsageError(f"--defaults has no effect with {limits}; leave it out.")


def is_given(context: click.Context, name: str) -> bool:
    """Tell whether the flag of the parameter `name` is on the command line."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


_OF_SGLANG = {"max_model_len": "context_length"}
"""Names of SGLang's settings, by the name of kvsim's flag, if the two names differ."""


def policies_with(name: str) -> set[str]:
    """Return the policies that use a flag; empty for a flag that does not depend on the policy."""
    if name == "block_size":
        return set()
    if name == "enforce_eager":
        return {*EVERY_POLICY} - {Static.name}
    if _APPLIES_LIKE.get(name, name) in OF_PAGED:
        return {Paged.name}
    names = {_APPLIES_LIKE.get(name, name), _OF_SGLANG.get(name, name)}
    return {
        policy for policy, kinds in KINDS.items() for kind in kinds for each in settings_in(kind) if each.name in names
    }
