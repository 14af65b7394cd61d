"""`kvsim plot` of one kind, and of all that suit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image, ImageColor

from kvsim.cli.plot import _KINDS, _arranged
from kvsim.plots import FIGURES

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.recording import Recording

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(kvsim: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same requests under three policies, and in two sizes of memory."""
    folder = tmp_path_factory.mktemp("plot")
    assert kvsim("compare", "--num-requests", "12", "-o", "cmp", folder=folder).returncode == 0
    for blocks in ("700", "1400"):
        machine = ("--num-blocks", blocks, "--model", "Llama-3-8B")
        done = kvsim("run", "--num-requests", "12", *machine, "-o", f"b{blocks}", folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_the_kinds_of_the_help_are_those_that_there_are() -> None:
    words = set(_KINDS.replace(",", " ").split())
    assert set(FIGURES) <= words


def test_all_writes_what_suits_with_words_beside_it(kvsim: Run, folder: Path, tmp_path: Path) -> None:
    runs = [folder / "cmp" / policy for policy in ("paged", "contiguous", "static")]
    done = kvsim("plot", "--all", *runs, "-o", tmp_path / "all", "--as", "svg", "--for", "paper")
    assert (done.returncode, done.stderr) == (0, "")
    written = {path.name for path in (tmp_path / "all").iterdir()}
    kinds = {"waste-bars", "occupancy", "queue", "latency", "lifetimes", "free-runs"}
    names = ("paged", "contiguous", "static")
    each = {f"{kind}-{name}" for kind in ("waste-over-time", "memory-map", "roofline") for name in names}
    assert written == {f"{stem}{ending}" for stem in kinds | each for ending in (".svg", ".alt.txt")}
    assert len(done.stdout.splitlines()) == len(written) // 2


def test_a_caption_may_say_what_the_title_would(kvsim: Run, folder: Path) -> None:
    for name, flags in (("with.png", ()), ("without.png", ("--no-title",))):
        done = kvsim("plot", "waste-bars", "b700", "-o", name, *flags, folder=folder)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}\n", "")
    assert (folder / "with.png").read_bytes() != (folder / "without.png").read_bytes()
    assert (folder / "with.alt.txt").read_text() == (folder / "without.alt.txt").read_text()


def test_a_writer_chooses_size_title_source_and_ground(kvsim: Run, folder: Path) -> None:
    flags = ("--size", "3.5x2", "--dpi", "100", "--title", "Ours", "--no-source", "--transparent")
    done = kvsim("plot", "waste-bars", "b700", "-o", "own.png", *flags, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    with Image.open(folder / "own.png") as image:
        assert image.size == (350, 200)
        assert image.getpixel((0, 0))[3] == 0
    kvsim("plot", "waste-bars", "b700", "-o", "text.svg", *flags, "--svg-text", folder=folder)
    svg = (folder / "text.svg").read_text()
    assert ">Ours</text>" in svg
    assert "Source:" not in svg
    kvsim("plot", "waste-bars", "b700", "-o", "paths.svg", folder=folder)
    assert "<text" not in (folder / "paths.svg").read_text()


def test_a_dark_figure_has_the_ground_and_the_tokens_of_the_dark_screen(kvsim: Run, folder: Path) -> None:
    for theme, ground, tokens in (("light", "#ffffff", "#72b8e4"), ("dark", "#12151a", "#8ad0f7")):
        done = kvsim("plot", "waste-bars", "b700", "-o", f"{theme}.png", "--theme", theme, folder=folder)
        assert (done.returncode, done.stderr) == (0, "")
        with Image.open(folder / f"{theme}.png") as image:
            colors = {color for _, color in image.convert("RGB").getcolors(1 << 24)}
            assert image.getpixel((0, 0)) == ImageColor.getrgb(ground)
            assert ImageColor.getrgb(tokens) in colors
    done = kvsim("plot", "waste-bars", "b700", "-o", "clear.png", "--theme", "dark", "--transparent", folder=folder)
    with Image.open(folder / "clear.png") as image:
        assert image.getpixel((0, 0))[3] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--size", "3.4"), "--size should be a width and a height of 1 to 40 inches such as 3.3x2.2, not '3.4'."),
        (("--size", "0x9"), "--size should be a width and a height of 1 to 40 inches such as 3.3x2.2, not '0x9'."),
        (("--size", "1x1"), "a figure of 1 x 1 inches has no room for its panels; give a larger --size"),
        (("--size", "40x40", "--dpi", "2400"), "--size and --dpi together give more than 100 million pixels"),
        (("--as", "svg"), "--as requires --all; give both."),
        (("--title", "a", "--no-title"), "--title has no effect with --no-title; leave one out."),
    ],
)
def test_what_cannot_be_is_refused(kvsim: Run, folder: Path, flags: tuple[str, ...], words: str) -> None:
    done = kvsim("plot", "waste-bars", "b700", "-o", "none.png", *flags, folder=folder)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert not (folder / "none.png").exists()


def test_runs_in_several_sizes_are_points(kvsim: Run, folder: Path) -> None:
    done = kvsim("plot", "throughput-memory", "b700", "b1400", "-o", "sweep.pdf", folder=folder)
    assert (done.returncode, done.stdout) == (0, "sweep.pdf\n")
    assert (folder / "sweep.alt.txt").read_text().count("tokens per second") == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("roofline",), "a figure of roofline needs at least one recording"),
        (("roofline", "b700", "b1400"), "a figure of roofline shows one recording, and 2 were given."),
        (("agreement", "b700"), "a figure of agreement shows a measured run and its simulation, and 1 were given."),
        (("agreemnt", "b700"), "there is no kind of figure 'agreemnt'; did you mean agreement"),
        (("occupancy", *["b700"] * 5), "5 recordings were given; give 1 to 4"),
    ],
)
def test_what_cannot_be_drawn(kvsim: Run, folder: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = kvsim("plot", *arguments, folder=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"kvsim: {sentence}")


def test_labels_and_their_order_are_a_writers(kvsim: Run, folder: Path, tmp_path: Path) -> None:
    runs = [folder / "cmp" / policy for policy in ("paged", "static")]
    labels = ("--label", "pages", "--label", "a rectangle")
    for order, first in (((), "pages"), (("--order", "a rectangle, pages"), "a rectangle")):
        done = kvsim("plot", "waste-bars", *runs, "-o", tmp_path / "bars.png", *labels, *order)
        assert done.returncode == 0, done.stderr
        words = (tmp_path / "bars.alt.txt").read_text()
        assert min(("pages", "a rectangle"), key=words.index) == first


@pytest.mark.parametrize(
    ("kind", "flags", "complaint"),
    [
        ("waste-bars", ("--label", "a", "--label", "b"), "a name for each"),
        ("waste-bars", ("--label", "a", "--order", "b"), "--order should name each recording once (a), not 'b'"),
        ("memory-map", ("--label", "a"), "--label and --order name the recordings of waste-bars"),
    ],
)
def test_labels_that_fit_nothing_are_refused(
    kvsim: Run, folder: Path, tmp_path: Path, kind: str, flags: tuple[str, ...], complaint: str
) -> None:
    done = kvsim("plot", kind, folder / "b700", "-o", tmp_path / "x.png", *flags)
    assert done.returncode != 0
    assert complaint in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_equal_labels_draw_each_recording_once() -> None:
    runs: Any = ["first", "second", "third"]
    arranged: tuple[list[Recording], tuple[str, ...]] = _arranged(runs, ("b", "a", "b"), "a, b, b")
    assert arranged == (["second", "first", "third"], ("a", "b", "b"))
