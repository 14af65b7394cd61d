"""Picture: a matplotlib figure with title, legend and source line, laid out and written with deterministic bytes."""

from __future__ import annotations

import io
import textwrap
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, LogFormatter, LogLocator, NullLocator, ScalarFormatter, StrMethodFormatter
from matplotlib.transforms import Bbox
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from kvsim.errors import UsageError
from kvsim.memory.waste import SlotState
from kvsim.plots.axes import marked
from kvsim.plots.colors import THEMES, Theme
from kvsim.plots.style import MEDIA, STATE_HATCHES, STATE_LABELS, Purpose, Size, style
from kvsim.plots.words import spaced

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from matplotlib.artist import Artist
    from matplotlib.ticker import Locator

_MARGIN_EM = 0.4
"""Width of the empty edge of a figure, in multiples of the font size."""
_PNG_LEVEL = 3
"""Compression level of PNG files; the default of 6 takes 1.5 times as long and saves a twelfth of the bytes."""
_LEAST_WIDE_EM = 44
"""Least width of a figure that has room for panels side by side, in multiples of the font size."""
_LEAST_PANELS = 0.1
"""Smallest share of the figure's height that may be left for the panels."""


class _Spaced(StrMethodFormatter):
    """Labels of ticks with thin spaces between thousands."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return spaced(super().__call__(x, pos))


class _Several(tuple[Patch, ...]):
    """Legend handle of several patches beside each other, with one label."""

    label: str

    @classmethod
    def of(cls, patches: Iterable[Patch], label: str) -> _Several:
        several = cls(patches)
        several.label = label
        return several

    def get_label(self) -> str:
        return self.label


class Look(TypedDict, total=False):
    """Appearance of a figure. Each key may be left out."""

    purpose: Purpose
    """Medium to draw for; by default "web"."""
    size: Size | None
    """Width and height in inches; None, the default, for those of the medium."""
    theme: Theme
    """Background of the figure; by default "light"."""


class Picture(Figure):
    """A figure for one medium, with a title, a legend, panels, and a source line, from top to bottom."""

    alt_text = ""
    """Description in words, for readers who cannot see the picture."""

    def __init__(
        self, purpose: Purpose, size: Size | None, theme: Theme, *, aspect: float, narrow_aspect: float | None = None
    ) -> None:
        """Create an empty figure of `size` inches.

        If `size` is None, the figure is as wide as the medium of `purpose`, and its height is `aspect` times its width,
        times `Medium.stretch`. For a narrow figure, `narrow_aspect` replaces `aspect` if it is given.
        """
        self.purpose: Purpose = purpose
        self.theme: Theme = theme
        self.colors = THEMES[theme]
        medium = MEDIA[purpose]
        self.is_narrow = 72 * (size or (medium.width_in,))[0] < _LEAST_WIDE_EM * medium.font_pt
        """True if there is no room for panels, or for bars and their labels, side by side."""
        self._font_pt = medium.font_pt
        self.line_pt = medium.line_pt
        """Line width in points. Plots derive the sizes of markers and of thinner lines from it."""
        # The padding around panels scales with the font, as the margin of the title does.
        pad_in = _MARGIN_EM * medium.font_pt / 72
        self._engine = ConstrainedLayoutEngine(w_pad=pad_in, h_pad=pad_in)
        aspect = narrow_aspect if self.is_narrow and narrow_aspect is not None else aspect
        default = (medium.width_in, medium.stretch * aspect * medium.width_in)
        super().__init__(figsize=size or default, layout=self._engine)
        self._bottom, self._top = 0.0, 1.0
        self._title: Text | None = None
        self._title_pt = 0.0
        self._source: Text | None = None
        self._source_pt = 0.0
        self._legend_top = 1.0
        self._minor_ticks: list[tuple[Axis, Locator, Artist]] = []

    @property
    def width_em(self) -> float:
        """Width of the figure in multiples of the font size."""
        return 72 * float(self.get_size_inches()[0]) / self._font_pt

    def headline(self, title: str, source: str) -> None:
        """Write `title` on top and `source` at the bottom, both wrapped to the width."""
        width_in, height_in = self.get_size_inches()
        margin = _MARGIN_EM * self._font_pt / 72
        source_pt = 0.78 * self._font_pt
        # A letter is about as wide as 0.57 of its size, or 0.63 in bold.
        source_lines = textwrap.wrap(source, max(10, int(72 * width_in / source_pt / 0.57)), break_on_hyphens=False)
        x, y = margin / width_in, margin / height_in
        self.set_title(title)
        self._source = self.text(
            x, y, "\n".join(source_lines), va="bottom", fontsize=source_pt, color=self.colors.muted
        )
        self._source_pt = (1.3 * len(source_lines) + 0.8) * source_pt
        self._keep(top_pt=0.0, bottom_pt=self._source_pt)

    def set_title(self, title: str) -> None:
        """Write `title` in place of the present one, wrapped to the width. If empty, the panels get its room."""
        before_pt = self._title_pt
        if self._title is not None:
            self._title.remove()
        self._title, self._title_pt = None, 0.0
        if title:
            width_in, height_in = self.get_size_inches()
            margin, title_pt = _MARGIN_EM * self._font_pt / 72, 1.1 * self._font_pt
            lines = _balanced(title, max(10, int(72 * width_in / title_pt / 0.63)))
            place = (margin / width_in, 1 - margin / height_in)
            self._title = self.text(
                *place, "\n".join(lines), va="top", fontsize=title_pt, fontweight="bold", color=self.colors.ink
            )
            self._title_pt = (1.3 * len(lines) + 0.5) * title_pt
        self._keep(top_pt=self._title_pt - before_pt)
        self._legend_top -= (self._title_pt - before_pt) / (72 * self.get_size_inches()[1])
        for legend in self.legends:
            legend.set_bbox_to_anchor((0, self._legend_top))

    def drop_source(self) -> None:
        """Remove the source line, and leave its room to the panels."""
        if self._source is not None:
            self._source.remove()
            self._source = None
            self._keep(top_pt=0.0, bottom_pt=-self._source_pt)

    def add_state_legend(self, states: Iterable[SlotState], *, hatched: bool = True, by_owner: bool = False) -> None:
        """Add a legend of `states` below the title, which must be set first.

        With `hatched`, wasted states have hatches. With `by_owner`, tokens have a hue for each request.
        """
        hatches = STATE_HATCHES if hatched else {}
        states = list(states)
        handles: list[Any] = []
        if by_owner and SlotState.TOKEN in states:
            states.remove(SlotState.TOKEN)
            patches = tuple(Patch(facecolor=color, linewidth=0) for color in self.colors.owners[:4])
            handles.append(_Several.of(patches, f"{STATE_LABELS[SlotState.TOKEN]}, by request"))
        handles += [
            Patch(
                facecolor=self.colors.states[state],
                hatch=hatches.get(state),
                edgecolor=self.colors.ground if state in hatches else self.colors.muted,
                linewidth=0 if state in hatches else None,
                label=STATE_LABELS[state],
            )
            for state in states
        ]
        self.add_legend(handles, num_columns=min(len(handles), 2 if self.is_narrow else 3))

    def add_line_legend(self, axes: Axes) -> None:
        """Add a legend of the labelled lines of `axes`, if there are at least two."""
        handles = axes.get_legend_handles_labels()[0]
        if len(handles) > 1:
            self.add_legend(handles)

    def add_legend(self, handles: list[Any], *, num_columns: int | None = None, marker_scale: float = 1.0) -> None:
        """Add a legend of labelled `handles` below the title, which must be set first.

        By default, there are as many columns as fit. Markers are `marker_scale` times as large as in the panels.
        """
        if num_columns is None:
            num_columns = self._columns_that_fit([len(str(handle.get_label())) for handle in handles])
        self._legend_top = self._top
        self.legend(
            handles=handles, labels=[str(handle.get_label()) for handle in handles], loc="upper left",
            bbox_to_anchor=(0, self._top), ncols=num_columns, borderpad=0.2, markerscale=marker_scale,
            handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        )  # fmt: skip
        num_rows = -(-len(handles) // num_columns)
        self._keep(top_pt=(1.35 * num_rows + 0.6) * self._font_pt)

    def _columns_that_fit(self, letters: list[int]) -> int:
        """Return the largest number of legend columns with room for labels of `letters` letters each.

        Labels are laid out column by column. Fewer rows are tried first, so that the legend is as low as possible.
        """
        width_em = self.width_em / 0.9
        for num_rows in range(1, len(letters)):
            columns = [letters[begin : begin + num_rows] for begin in range(0, len(letters), num_rows)]
            if sum(0.57 * max(column) + 4 for column in columns) <= width_em:
                return len(columns)
        return 1

    def fix_layout(self) -> None:
        """Compute the layout once and round it, because the solver's last digits vary and files must be equal."""
        for axis, locator, marks in self._minor_ticks:
            marks.remove()
            axis.set_minor_locator(locator)
        axises = [axis for axes in self.axes for axis in (axes.xaxis, axes.yaxis)]
        for axis in axises:
            formatter = axis.get_major_formatter()
            large = isinstance(formatter, ScalarFormatter) and max(axis.get_view_interval()) >= 1_000
            if large or isinstance(formatter, LogFormatter):  # the latter writes formulas
                axis.set_major_formatter("{x:,.10g}")
        self._space_thousands()
        # Matplotlib lays out six artists for each tick, several times. Minor ticks have no labels and need no room;
        # their number depends on the final layout.
        minor = {axis: axis.get_minor_locator() for axis in axises if isinstance(axis.get_minor_locator(), LogLocator)}
        for axis in minor:
            axis.set_minor_locator(NullLocator())
        for axes in self.axes:
            for side, axis in (("left", axes.yaxis), ("bottom", axes.xaxis)):
                if axis.get_tick_params().get(f"label{side}", True):
                    # The labels extend further than the spine, and measuring a spine lays out all ticks again.
                    axes.spines[side].set_in_layout(False)
        self._lay_out()
        self.set_layout_engine(None)  # even an engine that does nothing would draw everything again
        for axes in self.axes:
            axes.set_position(Bbox(np.round(axes.get_position().get_points(), 6)))
        self._minor_ticks = [(axis, locator, marked(axis, locator)) for axis, locator in minor.items()]

    def _lay_out(self) -> None:
        with warnings.catch_warnings(record=True) as complaints:
            warnings.simplefilter("always")
            if self._top - self._bottom > _LEAST_PANELS:
                self._engine.execute(self)
        if self._top - self._bottom <= _LEAST_PANELS or any("collapsed" in str(each.message) for each in complaints):
            width_in, height_in = self.get_size_inches()
            raise UsageError(
                f"a figure of {width_in:g} x {height_in:g} inches has no room for its panels; give a larger --size, or "
                "leave out the title and the source."
            )

    def _space_thousands(self) -> None:
        # Texts of ticks are written when they are drawn, and asking for them makes all ticks.
        parts = [*self.get_children(), *(part for axes in self.axes for part in axes.get_children())]
        texts = [text for part in parts if not isinstance(part, Axes | Axis) for text in part.findobj(Text)]
        for text in (*texts, *(axis.label for axes in self.axes for axis in (axes.xaxis, axes.yaxis))):
            text.set_text(spaced(text.get_text()))
        for axes in self.axes:
            for axis in (axes.xaxis, axes.yaxis):
                ticks = axis.get_major_formatter()
                if isinstance(ticks, StrMethodFormatter):
                    axis.set_major_formatter(_Spaced(ticks.fmt))
                elif isinstance(ticks, FixedFormatter):
                    axis.set_major_formatter(FixedFormatter([spaced(label) for label in ticks.seq]))

    def write(
        self,
        file: str | os.PathLike[str] | BinaryIO,
        kind: str,
        metadata: Mapping[str, str | None],
        *,
        transparent: bool = False,
        svg_text: bool = False,
    ) -> None:
        """Write the figure to `file` as `kind`: png, svg or pdf. With `svg_text`, text in SVG stays text.

        `metadata` has the values of the file's metadata fields by name; None leaves a field out, or empty in PNG.
        PNG files are written by Pillow, which takes half as long as matplotlib. They have an alpha channel only if
        `transparent`.
        """
        if transparent:
            for patch in (self.patch, *(axes.patch for axes in self.axes)):
                patch.set_alpha(0.0)
        with style(self.purpose, self.theme):  # ticks and hashes are made while drawing
            mpl.rcParams["svg.fonttype"] = "none" if svg_text else "path"
            if kind != "png":
                self.fix_layout()
                self.savefig(file, format=kind, metadata=metadata)
                return
            canvas: Any = FigureCanvasAgg(self)  # texts are measured once, for layout and drawing
            self.fix_layout()
            canvas.draw()
        text = PngInfo()
        for name, value in metadata.items():
            text.add_text(name, value or "")
        pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., : 4 if transparent else 3])
        image = Image.fromarray(pixels)
        image.save(file, format="png", pnginfo=text, dpi=(self.dpi, self.dpi), compress_level=_PNG_LEVEL)

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.write(drawn, "png", {})
        return drawn.getvalue()

    def _keep(self, *, top_pt: float, bottom_pt: float = 0.0) -> None:
        """Reserve strips at the top and at the bottom for texts, which constrained layout ignores."""
        height_pt = 72 * float(self.get_size_inches()[1])
        self._top -= top_pt / height_pt
        self._bottom += bottom_pt / height_pt
        self._engine.set(rect=(0, self._bottom, 1, self._top - self._bottom))


@contextmanager
def drawn(
    *,
    aspect: float,
    narrow_aspect: float | None = None,
    purpose: Purpose = "web",
    size: Size | None = None,
    theme: Theme = "light",
) -> Iterator[Picture]:
    """Yield an empty picture. What the `with` block draws has the style of its medium and theme.

    The arguments are those of `Picture`.
    """
    with style(purpose, theme):
        yield Picture(purpose, size, theme, aspect=aspect, narrow_aspect=narrow_aspect)


def _balanced(text: str, width: int) -> list[str]:
    """Wrap `text` into the fewest lines of at most `width` letters, all about equally long."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    for narrower in range(width - 1, width // 2, -1):
        tighter = textwrap.wrap(text, narrower, break_on_hyphens=False)
        if len(tighter) > len(lines):
            break
        lines = tighter
    return lines
