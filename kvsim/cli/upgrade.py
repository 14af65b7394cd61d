"""`kvsim compare --vllm OLD NEW`: the same requests under two releases of vLLM, and the rules that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cli.show import change_words, echo, print_json, print_table, progress, seconds
from kvsim.cli.workload import workload_and_source
from kvsim.display.text import size_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.experiments.upgrades import Effect, Upgrade
    from kvsim.policies import Paged
    from kvsim.simulation import Machine, Options

_LABELS: dict[str, tuple[str, Callable[[float], str]]] = {
    "num_blocks": ("blocks", "{:,.0f}".format),
    "gpu_kv_cache_size_tokens": ("GPU KV cache size, tokens, as vLLM logs it", "{:,.0f}".format),
    "max_concurrency": ("maximum concurrency", "{:,.2f}x".format),
    "longest_sequence_bytes": ("a sequence of max_model_len takes", size_words),
    "output_tokens_per_s": ("output tokens per second", "{:,.0f}".format),
    "duration_s": ("duration", seconds),
    "ttft_mean_s": ("TTFT, mean", seconds),
    "ttft_p99_s": ("TTFT, p99", seconds),
    "tpot_mean_s": ("TPOT, mean", seconds),
    "num_preemptions": ("preemptions", "{:,.0f}".format),
    "prefix_hit_rate": ("prefix hits, of the prompt tokens", "{:.1%}".format),
    "vain_tokens": ("tokens computed in vain", "{:,.0f}".format),
}
_SHORT = {
    "output_tokens_per_s": "tokens/s",
    "ttft_mean_s": "TTFT",
    "num_preemptions": "preemptions",
    "prefix_hit_rate": "hits",
    "vain_tokens": "in vain",
    "longest_sequence_bytes": "longest takes",
    "gpu_kv_cache_size_tokens": "logged tokens",
}
"""Short headings in the table of rules, by the name of the figure in `Upgrade.before`. A figure has a column if at
least one rule changes it. Tokens "in vain" were computed, but no finished request needed them.
"""
_FROM_STEP = "from step"


def compare_releases(old: str, new: str, flags: dict[str, Any], *, as_json: bool) -> None:
    """Simulate the requests under two releases, and print the differences in the figures and in the rules."""
    from kvsim.cli.scenario import build_scenario
    from kvsim.experiments.upgrades import explain_upgrade
    from kvsim.policies import Paged

    requests = workload_and_source(flags)

    def setup(release: str) -> tuple[Paged, Machine]:
        scenario = build_scenario(lambda _flags: requests, **flags | {"vllm": release})
        policy = scenario.policy(Paged.name)
        assert isinstance(policy, Paged)
        return policy, scenario.machine(policy)

    with progress(f"{old} to {new}") as report:
        options: Options = {"refuse_misfits": flags["refuse_misfits"], "check": flags["check"], "progress": report}
        upgrade = explain_upgrade(old, new, requests[0], setup, **options)
    if as_json:
        print_json(upgrade.as_dict())
        return
    _print(upgrade, requests[0].description)


def _print(upgrade: Upgrade, load: str) -> None:
    rows = [
        (label, *map(form, both), change_words(*both, form))
        for name, (label, form) in _LABELS.items()
        for both in [(upgrade.before[name], upgrade.after[name])]
    ]
    print_table(load, ["", f"vLLM {upgrade.old}", f"vLLM {upgrade.new}", "change"], rows, figures=(1, 2, 3))
    _print_first(upgrade)
    effects = [each for each in upgrade.effects if each.matters]
    if effects:
        _print_rules(upgrade, effects)


def _print_first(upgrade: Upgrade) -> None:
    first = upgrade.first
    if first is None:
        echo("Every decision is the same.")
        return
    named = [each.change.says for each in upgrade.effects if each.names_first]
    lines = [(line.label, line.recorded, line.simulated) for line in first.decisions.lines if line.differs]
    title = f"The first decision that differs: {first.decisions.moment}, at {seconds(first.at_s)}"
    kinds = ", ".join(f"{kind} from step {step:,}" for kind, step in upgrade.first_step_of_kind.items())
    other = upgrade.num_changed_requests
    served = (
        f"\nrequests that are preempted more or less often: {other['preemptions']:,}; with other prefix hits: "
        f"{other['cached_tokens']:,}; with a TTFT more than 1 % away: {other['ttft_s']:,}"
        if other
        else ""
    )
    because = f"because of: {' '.join(named)}\n" if named else ""
    print_table(title, ["", upgrade.old, upgrade.new], lines, note=f"{because}what differs: {kinds}{served}")


def _print_rules(upgrade: Upgrade, effects: list[Effect]) -> None:
    changed = [figures for each in effects for figures in (each.alone, each.together) if figures]
    shown = [name for name in _SHORT if any(_differ(upgrade.before, figures, name) for figures in changed)]
    columns = ["since", "rule", _FROM_STEP, *(_SHORT[name] for name in shown)]
    figures = range(2, len(columns))
    title = f"One rule of {upgrade.new} at a time over {upgrade.old}"
    without = len(upgrade.effects) - len(effects)
    note = f"without effect on this load: {without} more that changed (kvsim versions {upgrade.old} {upgrade.new})"
    rows = [(*_rule(each, each.alone), _step(each), *_cells(each.alone, shown)) for each in effects]
    print_table(title, columns, rows, figures=figures, note=note if without else "")
    if len(effects) > 1:
        title = f"The same rules over {upgrade.old}, each with those above it"
        columns.remove(_FROM_STEP)
        rows = [(*_rule(each, each.together), *_cells(each.together, shown)) for each in effects]
        print_table(title, columns, rows, figures=range(2, len(columns)))


def _rule(effect: Effect, figures: Mapping[str, float]) -> tuple[str, str]:
    problem = "" if figures else f" {effect.problem}"
    return effect.change.since, f"{effect.change.says}{problem}"


def _step(effect: Effect) -> str:
    return "" if effect.first_step is None or not effect.alone else f"{effect.first_step:,}"


def _cells(figures: Mapping[str, float], shown: list[str]) -> list[str]:
    return [_LABELS[name][1](figures[name]) if figures else "" for name in shown]


def _differ(before: Mapping[str, float], after: Mapping[str, float], name: str) -> bool:
    form = _LABELS[name][1]
    return form(before[name]) != form(after[name])
