"""`kvsim animate`: write a film of the memory pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kvsim.cli.show import output_option, overwrite_option, theme_option
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.plots.colors import Theme

_MOST_FRAMES = 6_000


@click.command("animate")
@click.argument("recordings", nargs=-1, required=True)
@output_option(
    "File to write: .gif, .mp4 or .html show the pools; .svg shows the progress of each run.",
    default="pool.gif",
    show_default=True,
)
@click.option(
    "--until",
    "until_s",
    type=float,
    metavar="SECONDS",
    help="Simulated time at which the film ends.  [the end of the longest run, but at most 1.25 times the shortest]",
)
@click.option(
    "--length", "length_s", type=float, default=12.0, show_default=True, help="Duration of the film in seconds."
)
@click.option("--frames-per-second", type=float, default=12.5, show_default=True, help="Frames per second of a film.")
@click.option(
    "--max-mib", type=float, default=4.75, show_default=True, help="Largest size of a film; a GIF drops frames to fit."
)
@theme_option("Background and colours of a .gif or .mp4. An .html or .svg is dark where the reader's system is.")
@overwrite_option()
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    recordings: tuple[str, ...],
    output: Path,
    until_s: float | None,
    length_s: float,
    frames_per_second: float,
    max_mib: float,
    theme: Theme,
    overwrite: bool,
) -> None:
    """Film the memory pool of one to four RECORDINGS, side by side on one clock.

    A page (.html) plays in any browser and can be scrubbed; an .mp4 needs ffmpeg. An .svg is no film: it shows the
    progress of each run as a bar, and takes any number of RECORDINGS, such as those of kvsim compare --ladder -o
    FOLDER. Both are dark in browsers that prefer dark pages.
    """
    from kvsim.files.overwriting import may_write
    from kvsim.plots import FILMS, film_of, write_race
    from kvsim.recording import find, read

    races = output.suffix.lower() == ".svg"
    if races:
        for flag, name in (("--frames-per-second", "frames_per_second"), ("--max-mib", "max_mib")):
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise UsageError(f"{flag} is for films, and {output} is a drawing without frames; leave it out.")
    is_themed = output.suffix.lower() in (".gif", ".mp4")
    if not is_themed and context.get_parameter_source("theme") is not ParameterSource.DEFAULT:
        raise UsageError(f"--theme is for a .gif or .mp4, and {output} follows the reader's system; leave it out.")
    num_frames = _num_frames(output, length_s, frames_per_second, max_mib)
    may_write(output, "animate", overwrite=overwrite)
    if until_s is not None and not 0 < until_s < float("inf"):
        raise UsageError(f"--until should be a time above 0 s, not {until_s}.")
    runs = [read(find(name)) for name in recordings]
    if races:
        click.echo(write_race(runs, output, length_s=length_s, until_s=until_s))
        return
    film = film_of(runs, num_frames=num_frames, until_s=until_s)
    longest_s = max(run.duration_s for run in runs)
    if until_s is None and film.times_s[-1] < longest_s:
        click.echo(
            f"the film ends at {film.times_s[-1]:.4g} s, soon after the shortest run; "
            f"--until {longest_s:.6g} shows the longest to its end.",
            err=True,
        )
    write = FILMS[output.suffix.lower()]
    options = {"theme": theme} if is_themed else {}
    click.echo(write(film, output, frames_per_s=frames_per_second, max_bytes=int(max_mib * (1 << 20)), **options))


def _num_frames(output: Path, length_s: float, frames_per_second: float, max_mib: float) -> int:
    from kvsim.files.overwriting import check_ending
    from kvsim.plots import FILMS

    check_ending(output, "a film", *FILMS, ".svg")
    for name, value in (("--length", length_s), ("--frames-per-second", frames_per_second), ("--max-mib", max_mib)):
        if not 0 < value < 1e4:
            raise UsageError(f"{name} should be above 0 and below 10,000, not {value}.")
    num_frames = max(2, round(length_s * frames_per_second))
    if num_frames > _MOST_FRAMES:
        raise UsageError(
            f"--length and --frames-per-second ask for {num_frames:,} frames; a film has at most {_MOST_FRAMES:,}."
        )
    return num_frames
