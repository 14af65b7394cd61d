"""Screen that plays a fleet: a wall of pools, with a strip for each server."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding

from ..facts.fleet_telling import fleet_headline, fleet_story
from ..playback.session import Session
from ..widgets.fleet_queue_chart import FleetQueueChart
from ..widgets.pool_wall import PoolWall
from .playback import PlaybackScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from ..look.states import Symbols
    from ..playback.fleet_servers import FleetServers
    from ..playback.run_events import EventKind

_ONE_SERVER = "Open a server first: up and down select one, enter opens it."


class Wall(PlaybackScreen):
    """Plays all servers of a fleet on one clock. The user can open a single server at the current time."""

    PANELS = "PoolWall, FleetQueueChart"
    HINTS: ClassVar[tuple[str, ...]] = ("space plays or pauses, n follows a request", "space play, n follow")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open server", id="wall.open"),
        Binding("c", "one_server", show=False, id="wall.compare"),
        Binding("up", "pick(-1)", "Server above", show=False, id="wall.up"),
        Binding("down", "pick(1)", "Server below", show=False, id="wall.down"),
    ]
    HIDDEN: ClassVar[frozenset[str]] = frozenset({"color", "arrange", "zoom", "find", "diagnose", "tree"})
    """Actions that need a single server, and are disabled here."""

    def __init__(self, fleet: FleetServers, symbols: Symbols) -> None:
        super().__init__(fleet.player, symbols)
        self.fleet = fleet
        self.story = fleet_story(fleet)

    def compose_body(self) -> ComposeResult:
        yield PoolWall(self.fleet, self.symbols)
        yield FleetQueueChart(self.fleet, self.symbols)

    def headline(self) -> tuple[list[str], list[str]]:
        return fleet_headline(self.fleet, short=False), fleet_headline(self.fleet, short=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action not in self.HIDDEN and super().check_action(action, parameters)

    def sessions(self) -> Iterable[Session]:
        """Return no session. A server is replayed only after the user opens it."""
        return ()

    def show_picture(self) -> None:
        """Draw the time line. The strips are panels, and are drawn less often."""
        self.query_one(FleetQueueChart).move()

    @property
    def followed_name(self) -> str | None:
        return self.fleet.followed

    def follow(self, request: int | None) -> None:
        """Follow no request if `request` is None; otherwise do nothing.

        A row has no meaning here, because each server has rows of its own. `follow_name` follows a request by its id.
        """
        if request is None:
            self.follow_name(None)

    def follow_name(self, name: str | None) -> None:
        """Follow the request with the id `name` from server to server. If `name` is None, follow no request."""
        self.fleet.followed = name
        self.show_panels()

    def action_follow_next(self, direction: int) -> None:
        """Follow the next (1) or previous (-1) request that waits or runs on any server."""
        names = self.fleet.present_ids(self.player.clock_s)
        if not names:
            self.notify("No request runs or waits now.", timeout=3)
        elif self.fleet.followed not in names:
            self.follow_name(names[-1])
        else:
            self.follow_name(names[(names.index(self.fleet.followed) + direction) % len(names)])

    def action_pick(self, direction: int) -> None:
        """Select the server below (1) or above (-1)."""
        self.query_one(PoolWall).pick(direction)

    def action_open(self) -> None:
        wall = self.query_one(PoolWall)
        self._open(wall.shown[wall.picked])

    @on(PoolWall.Opened)
    def _opened(self, message: PoolWall.Opened) -> None:
        self._open(message.server)

    def _open(self, number: int) -> None:
        server, time_s, followed = self.fleet.servers[number], self.player.clock_s, self.fleet.followed

        def opened() -> Session:
            session = Session(server.reopen(), at_s=time_s)
            session.server = server.name
            if followed is not None and followed in server.ids:
                session.followed = int((server.ids == followed).argmax())
            return session

        self.app.run_in_thread(opened, self.app.play_session, f"Opening {server.name}")

    def action_one_server(self) -> None:
        self.notify(_ONE_SERVER, timeout=3)

    def jump_to_kind(self, kind: EventKind) -> None:
        del kind
        self.action_one_server()

    def action_help(self) -> None:
        from ..dialogs.help import FLEET_KEYS, IDEA_OF_FLEET, HelpScreen  # noqa: PLC0415 - nothing that the first picture needs

        self.app.push_screen(HelpScreen(IDEA_OF_FLEET, self.symbols, FLEET_KEYS))

    def show_found(self, found: tuple[str, int] | None) -> None:
        """Ignore `found`: the find dialog is disabled here."""

    def action_zoom(self, direction: int) -> None:
        del direction
        self.action_one_server()

    def action_color(self) -> None:
        self.action_one_server()

    def file_name(self) -> str:
        return f"kvsim-fleet-{self.player.clock_s:.3f}s"

    def csv_text(self) -> str:
        """Return the figures at the current time as CSV, one row per server, the fullest pool first."""
        table = io.StringIO(newline="")
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("server", "time_s", "held_share", *self._columns))
        now = self.fleet.at(self.player.clock_s)
        for number in self.fleet.fullest(now):
            name, figures = self.fleet.servers[number].name, now[number]._asdict()
            row = (figures[column] for column in self._columns)
            writer.writerow((name, f"{self.player.clock_s:.6f}", f"{now[number].held_share:.6f}", *row))
        return table.getvalue()

    _columns = ("running", "waiting", "preempted", "computed", "prompt_tokens", "hit_tokens")
