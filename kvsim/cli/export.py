"""`kvsim export`: write a recording in the format of another program."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.cli.show import output_option, overwrite_option

_ENDINGS = {
    "perfetto": ".pftrace",
    "csv": "-csv",
    "parquet": "-parquet",
    "azure": "-azure.csv",
    "mooncake": "-mooncake.jsonl",
    "burstgpt": "-burstgpt.csv",
}


@click.command("export")
@click.argument("recording_name", metavar="RECORDING")
@click.option(
    "--to",
    "target",
    type=click.Choice(list(_ENDINGS)),
    default="perfetto",
    show_default=True,
    help="Format to write.",
)
@output_option("File, or folder of csv and parquet.  [by its name]")
@overwrite_option()
def command(*, recording_name: str, target: str, output: Path | None, overwrite: bool) -> None:
    """Write RECORDING as a Perfetto trace, as tables, or only its requests in the format of a published trace.

    Open a Perfetto trace at https://ui.perfetto.dev.
    """
    from kvsim.exporters import EXPORTERS
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.recording import find, read

    recording = read(find(recording_name))
    path = output or Path(f"{recording.name}{_ENDINGS[target]}")
    is_folder = target in ("csv", "parquet")
    may_replace(path, "export", overwrite=overwrite, is_folder=is_folder)
    if is_folder:
        with replacing_folder(path, "export", overwrite=overwrite) as folder:
            EXPORTERS[target](recording, folder)
    else:
        EXPORTERS[target](recording, path)
    click.echo(path)
