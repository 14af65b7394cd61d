"""`kvsim versions`: list the releases of vLLM whose rules kvsim knows, and the changes in each."""

from __future__ import annotations

import click

from kvsim.cli.show import echo, json_option, print_json, print_table
from kvsim.policies.releases import CHANGES, NEWEST, OLDEST, changes_between


@click.command("versions")
@click.argument("old", required=False)
@click.argument("new", required=False)
@json_option
def command(*, old: str | None, new: str | None, as_json: bool) -> None:
    """List the rules of vLLM's scheduler and cache that changed, release by release.

    With OLD and NEW, list the changes from release OLD to release NEW; with OLD alone, all changes since OLD.
    """
    changes = changes_between(old, new or NEWEST) if old else CHANGES
    if as_json:
        known = {"oldest": OLDEST, "newest": NEWEST}
        print_json({**known, "changes": [{"since": change.since, "rule": change.says} for change in changes]})
    elif changes:
        rows = [
            ("" if index and changes[index - 1].since == change.since else change.since, change.says)
            for index, change in enumerate(changes)
        ]
        span = f"from {old} to {new or NEWEST}" if old else f"from {OLDEST} to {NEWEST}"
        print_table(f"rules of vLLM's scheduler and cache that changed {span}", ["since", "rule"], rows)
    else:
        echo(f"From vLLM {old} to {new or NEWEST} no rule of the scheduler or the cache changed.")
