"""Entries of the command palette: the actions of the playing screen, and the themes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import SystemCommand

from .dialogs.command_palette import PaletteScreen
from .playback.run_events import EventKind
from .saving import save

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .screens.app_interface import AppInterface
    from .screens.playback import PlaybackScreen


def commands(app: AppInterface, playback: PlaybackScreen) -> Iterator[SystemCommand]:
    """Yield a palette entry for each action of the playing screen."""
    yield SystemCommand("Play or pause", "Run the recording's clock", playback.action_play)
    yield SystemCommand("Next event", "Jump to the next notable event", lambda: playback.action_event(1))
    yield SystemCommand("Previous event", "Jump back to one", lambda: playback.action_event(-1))
    for name, kind in (
        ("preemption", EventKind.PREEMPTED),
        ("refusal", EventKind.REFUSED),
        ("eviction", EventKind.EVICTED),
        ("finish", EventKind.FINISHED),
    ):
        yield SystemCommand(
            f"Next {name}", "Jump to it, whatever else happens before", lambda kind=kind: playback.jump_to_kind(kind)
        )
    yield SystemCommand("Find", "Follow a request, or select a block", playback.action_find)
    yield SystemCommand("Follow no request", "Light the whole pool again", lambda: playback.follow(None))
    yield SystemCommand("Arrange", "The pool by owner, or in physical order", playback.action_arrange)
    yield SystemCommand("More detail", "Zoom into the pool", lambda: playback.action_zoom(1))
    yield SystemCommand("Less detail", "Zoom out of the pool", lambda: playback.action_zoom(-1))
    yield SystemCommand("Compare", "The same requests under every policy, on one clock", app.action_compare)
    yield SystemCommand(
        "Radix tree", "Nodes of SGLang's cache, who holds them, what can be evicted", playback.action_tree
    )
    yield SystemCommand("Remedies", "Changes of the server, each with its predicted effect", playback.action_diagnose)
    yield SystemCommand("Lessons", "Short guided scenarios", app.action_lessons)
    yield SystemCommand("Save a picture", "Write the screen as an SVG file", lambda: save(app, playback, "svg"))
    yield SystemCommand("Save a picture as PNG", "Where there is a converter", lambda: save(app, playback, "png"))
    yield SystemCommand("Save the numbers", "Write a CSV file", lambda: save(app, playback, "csv"))
    yield SystemCommand("Explain this screen", "What the panels, colours and keys mean", playback.action_help)


def themes(app: AppInterface) -> Iterator[SystemCommand]:
    """Yield a palette entry for each theme that has its own background colour, because saved pictures need one.

    Textual's "ansi" themes are left out, because they use the background of the terminal.
    """
    for name in app.available_themes:
        if "ansi" not in name:
            yield SystemCommand(name, "", lambda name=name: setattr(app, "theme", name))


def choose(app: AppInterface, offered: Iterable[SystemCommand], question: str) -> None:
    """Open the palette with the commands `offered`, and run the chosen one.

    `question` is the placeholder of the palette's input line. Do nothing while another dialog is open.
    """

    def call(chosen: SystemCommand | None) -> None:
        if chosen is not None:
            chosen.callback()

    if app.plays(app.screen):
        app.push_screen(PaletteScreen(list(offered), question), call)
