"""Films as GIF, through Pillow, and MP4, through ffmpeg."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import textwrap
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from kvsim.display.palette import channels_of
from kvsim.errors import UsageError, reason_of
from kvsim.files.atomic import whole_file
from kvsim.files.marks import MARK_BYTES
from kvsim.memory.waste import SlotState
from kvsim.plots.colors import THEMES
from kvsim.plots.memory_map import codes_of, color_table
from kvsim.plots.style import STATE_LABELS
from kvsim.plots.words import spaced
from kvsim.replay.unfolding import NO_OWNER

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from kvsim.plots.colors import Colors, Theme
    from kvsim.plots.film import Film, Reel

_OTHER_FILMS = "a .gif or .html needs no ffmpeg"
_PANEL_PX = {1: 640, 2: 420, 3: 320, 4: 280}
"""Width of each pool in pixels, by the number of pools."""
_HEIGHT_PX = 400
"""Largest height of a pool in pixels."""
_MARGIN, _GAP = 16, 20
_TAKEN = "#ffb300"
"""Colour of a cell whose request has changed since the frame before; the interface has the same colour."""
_NUM_GREYS = 24
"""Number of colours in a GIF's palette from that of letters to the background, for the antialiasing of letters."""
_ENCODING_S = 60.0
"""Longest time in seconds to write an MP4, and one second more for each frame, which takes some 10 ms."""


def write_gif(
    film: Film, path: str | os.PathLike[str], *, frames_per_s: float, max_bytes: int, theme: Theme = "light"
) -> Path:
    """Write `film` as a looping GIF of at most `max_bytes`; leave out every second frame until it is small enough."""
    images = list(frame_images(film, theme))
    with whole_file(path, made_by="animate") as file:
        stride = 1
        while True:
            kept = images[::stride]
            kept[0].save(
                file, format="GIF", save_all=True, append_images=kept[1:], duration=round(1000 * stride / frames_per_s),
                loop=0, optimize=False, disposal=1,
            )  # fmt: skip
            size = file.stat().st_size + MARK_BYTES
            if size <= max_bytes:
                return Path(path)
            if len(kept) <= 2:
                raise UsageError(
                    f"two frames of this film take {size:,} bytes, more than the {max_bytes:,} allowed; allow more "
                    "(--max-mib)."
                )
            stride *= 2


def write_mp4(
    film: Film, path: str | os.PathLike[str], *, frames_per_s: float, max_bytes: int, theme: Theme = "light"
) -> Path:
    """Write `film` as an MP4 (H.264) with the ffmpeg on the PATH.

    Raises:
        UsageError: there is no ffmpeg, it cannot be run, fails or does not end, or the film is larger than `max_bytes`.
    """
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise UsageError("an MP4 needs ffmpeg, which is not on the PATH; install it, or write a .gif or .html.")
    width, height = _Layout(film, THEMES[theme]).size
    with whole_file(path, made_by="animate") as file:
        command = [
            ffmpeg, "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
            "-r", f"{frames_per_s:g}", "-i", "-", "-an", "-c:v", "libx264", "-preset", "slow", "-crf", "20",
            "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-fflags", "+bitexact", "-flags:v", "+bitexact",
            "-threads", "1", str(file),
        ]  # fmt: skip
        frames = (image.convert("RGB").tobytes() for image in frame_images(film, theme))
        _run_ffmpeg(command, frames, path, longest_s=_ENCODING_S + len(film.times_s))
        size = file.stat().st_size + MARK_BYTES
        if size > max_bytes:
            raise UsageError(f"the film takes {size:,} bytes, more than the {max_bytes:,} allowed; show fewer frames.")
    return Path(path)


def _run_ffmpeg(command: list[str], frames: Iterable[bytes], path: str | os.PathLike[str], *, longest_s: float) -> None:
    """Run ffmpeg, and hand it each frame when it is drawn, so that memory holds one frame of a film of any length."""
    late = threading.Event()
    with tempfile.TemporaryFile() as messages:  # a pipe that is not read could fill, and ffmpeg would never end
        try:
            ffmpeg = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages)
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be run: {reason_of(error)}; {_OTHER_FILMS}.") from error

        def end_late() -> None:
            late.set()
            ffmpeg.kill()

        limit = threading.Timer(longest_s, end_late)
        limit.start()
        try:
            with suppress(OSError), cast("IO[bytes]", ffmpeg.stdin) as pipe:  # it has ended; its exit status says why
                for frame in frames:
                    pipe.write(frame)
            status = ffmpeg.wait()
        finally:
            limit.cancel()
            ffmpeg.kill()
            ffmpeg.wait()
        if late.is_set():
            raise UsageError(f"{command[0]} did not end within {longest_s:g} seconds; {_OTHER_FILMS}.")
        if status:
            messages.seek(0)
            reason = messages.read().decode(errors="replace").strip().splitlines() or ["it does not say why"]
            raise UsageError(f"ffmpeg could not write {path}: {reason[-1][:200]}; {_OTHER_FILMS}.")


def frame_images(film: Film, theme: Theme = "light") -> Iterator[Image.Image]:
    """Yield the frames of `film` as images with a palette."""
    colors = THEMES[theme]
    layout = _Layout(film, colors)
    palette = Image.new("P", (1, 1))
    shown = [*(colors.states[state] for state in SlotState), *colors.owners, _TAKEN]
    ends = (_rgb(colors.ink), _rgb(colors.ground))
    greys = np.linspace(*ends, _NUM_GREYS).round().astype(int)
    palette.putpalette([*np.ravel([_rgb(color) for color in shown]).tolist(), *greys.ravel().tolist()])
    for frame in range(len(film.times_s)):
        yield layout.draw(frame).quantize(palette=palette, dither=Image.Dither.NONE)


def _rgb(color: str) -> tuple[int, ...]:
    return ImageColor.getrgb(color)[:3]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Layout of the cells of one pool in a panel."""

    num_columns: int
    num_rows: int
    cell_px: int

    @classmethod
    def of(cls, num_cells: int, width_px: int, max_height_px: int, max_cell_px: int = 40) -> _Grid:
        """Choose the largest square cells that fit, with a side of at most `max_cell_px` pixels."""
        for cell_px in range(max_cell_px, 1, -1):
            num_columns = width_px // cell_px
            num_rows = -(-num_cells // num_columns)
            if num_rows * cell_px <= max_height_px:
                return cls(num_columns=num_columns, num_rows=num_rows, cell_px=cell_px)
        raise AssertionError("a panel has fewer cells than pixels")

    def picture(self, colors_of_cells: npt.NDArray[np.uint8], ground: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Draw the cells, with lines in the colour `ground` between them if they are large enough:
        uint8[height, width, 3].
        """
        colors = np.full((self.num_columns * self.num_rows, 3), ground, np.uint8)
        colors[: len(colors_of_cells)] = colors_of_cells
        picture = colors.reshape(self.num_rows, self.num_columns, 3)
        picture = picture.repeat(self.cell_px, axis=0).repeat(self.cell_px, axis=1)
        if self.cell_px > 3:
            picture[self.cell_px - 1 :: self.cell_px] = ground
            picture[:, self.cell_px - 1 :: self.cell_px] = ground
        return picture


class _Layout:
    def __init__(self, film: Film, colors: Colors) -> None:
        self._film, self._colors, self._cell_colors = film, colors, color_table(colors)
        fonts = Path(mpl.get_data_path(), "fonts", "ttf")
        self._plain, self._small = (ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), size) for size in (14, 11))
        self._bold = ImageFont.truetype(str(fonts / "DejaVuSans-Bold.ttf"), 16)
        self._panel_px = _PANEL_PX[len(film.reels)]
        place = (self._panel_px, _HEIGHT_PX)
        # Cells of all pools are equally large, so that pools with equally many do not look different.
        cell_px = min(_Grid.of(reel.states.shape[1], *place).cell_px for reel in film.reels)
        self._grids = [_Grid.of(reel.states.shape[1], *place, cell_px) for reel in film.reels]
        grid_px = max(grid.num_rows * grid.cell_px for grid in self._grids)
        self._width = 2 * _MARGIN + len(film.reels) * self._panel_px + (len(film.reels) - 1) * _GAP
        self._states = [
            state for state in SlotState if any((reel.shares_percent[:, state] > 0.2).any() for reel in film.reels)
        ]
        # The mean width of a letter is about 0.6 of the font size.
        self._source = textwrap.wrap(film.source, int((self._width - 2 * _MARGIN) / (0.6 * 11)))
        self._grid_top = 84
        self._bar_top = self._grid_top + grid_px + 10
        self._legend_top = self._bar_top + 62
        self._legend_columns = columns = max(1, (self._width - 2 * _MARGIN) // 215)
        self._shows_taken = not film.by_owner  # hues of owners show who holds a cell
        self._source_top = self._legend_top + 20 * -(-(len(self._states) + self._shows_taken) // columns) + 8
        height = self._source_top + 15 * len(self._source) + 10
        # H.264 requires even numbers.
        self.size = (self._width + self._width % 2, height + height % 2)

    def draw(self, frame: int) -> Image.Image:
        image = Image.new("RGB", self.size, self._colors.ground)
        pen = ImageDraw.Draw(image)
        film = self._film
        now_s, end_s = float(film.times_s[frame]), float(film.times_s[-1])
        pen.text(
            (_MARGIN, 10), spaced(f"{now_s:,.2f} s" if end_s < 100 else f"{now_s:,.0f} s"), self._colors.ink, self._bold
        )
        left, right = _MARGIN + 110, self._width - _MARGIN
        pen.rectangle((left, 18, right, 20), self._colors.grid)
        pen.rectangle((left, 16, left + (right - left) * now_s / end_s, 22), self._colors.ink)
        for number, (reel, grid) in enumerate(zip(film.reels, self._grids, strict=True)):
            x = _MARGIN + number * (self._panel_px + _GAP)
            self._draw_reel(image, pen, reel, grid, x, frame)
        for place, state in enumerate([*self._states, *[None] * self._shows_taken]):
            row, column = divmod(place, self._legend_columns)
            x, y = _MARGIN + 215 * column, self._legend_top + 20 * row
            if state is None:
                self._draw_legend_entry(pen, _TAKEN, "just taken by a request", x, y)
            else:
                self._draw_state(pen, state, x, y)
        pen.multiline_text(
            (_MARGIN, self._source_top), "\n".join(self._source), self._colors.muted, self._small, spacing=3
        )
        return image

    def _draw_state(self, pen: ImageDraw.ImageDraw, state: SlotState, x: int, y: int) -> None:
        """Draw the legend's entry of a state, with the colours of some requests if the reels show owners."""
        label, color = STATE_LABELS[state], self._colors.states[state]
        if state is SlotState.TOKEN and self._film.by_owner:
            pen.rectangle((x, y + 2, x + 12, y + 14), color, self._colors.muted)
            for place, hue in enumerate(self._colors.owners[:4]):
                pen.rectangle((x + 16 + 8 * place, y + 2, x + 24 + 8 * place, y + 14), hue)
            pen.text((x + 54, y), f"{label}, by request", self._colors.ink, self._small)
        else:
            self._draw_legend_entry(pen, color, label, x, y)

    def _draw_legend_entry(self, pen: ImageDraw.ImageDraw, color: str, label: str, x: int, y: int) -> None:
        pen.rectangle((x, y + 2, x + 12, y + 14), color, self._colors.muted)
        pen.text((x + 18, y), label, self._colors.ink, self._small)

    def _draw_reel(
        self, image: Image.Image, pen: ImageDraw.ImageDraw, reel: Reel, grid: _Grid, x: int, frame: int
    ) -> None:
        """Draw the pool of one recording in one frame: its name, its cells, a bar of states, and its progress."""
        colors = self._cell_colors[codes_of(reel.states[frame], reel.owners[frame] if self._film.by_owner else None)]
        if self._shows_taken and frame:
            owners = reel.owners[frame]
            colors[(owners != reel.owners[frame - 1]) & (owners != NO_OWNER)] = channels_of(_TAKEN)
        pen.text((x, 38), self._cut(reel.name, self._plain), self._colors.ink, self._plain)
        pen.text((x, 60), self._cut(spaced(reel.about), self._small), self._colors.muted, self._small)
        image.paste(Image.fromarray(grid.picture(colors, _rgb(self._colors.ground))), (x, self._grid_top))
        y, edge = self._bar_top, 0.0
        for state in SlotState:
            share = float(reel.shares_percent[frame, state])
            begin, end = (x + round(self._panel_px * part / 100) for part in (edge, edge + share))
            if end > begin:
                pen.rectangle((begin, y, end - 1, y + 13), self._colors.states[state])
            edge += share
        over = self._film.times_s[frame] >= reel.end_s
        counts = f"{reel.batch[frame]:,} running, {reel.waiting[frame]:,} waiting"
        done = spaced(f"finished after {reel.end_s:,.4g} s" if over else counts)
        pen.text(
            (x, y + 18),
            f"{reel.shares_percent[frame, SlotState.TOKEN]:.0f}% live tokens · {done}",
            self._colors.ink,
            self._small,
        )
        answered = f"{reel.finished[frame]:,} of {reel.num_requests:,} answered"
        in_all = f" · takes {reel.end_s:,.4g} s in all" if reel.end_s > self._film.times_s[-1] else ""
        pen.text((x, y + 35), spaced(answered + in_all), self._colors.muted, self._small)

    def _cut(self, text: str, font: ImageFont.FreeTypeFont) -> str:
        while text and font.getlength(text) > self._panel_px:
            text = text[:-2].rstrip(" ,") + "…" if len(text) > 2 else ""
        return text
