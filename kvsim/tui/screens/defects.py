"""An interface that fails says so in a sentence and a non-zero exit code, on a terminal that works."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import DefectError

if TYPE_CHECKING:
    from textual.app import App


class Careful:
    """Mixed into an application: Textual's own report of a failure is a traceback of several screens."""

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()  # type: ignore[attr-defined]


def play(app: App[Any]) -> None:
    """Run `app` until the person quits.

    Raises:
        DefectError: it failed.
    """
    app.run()
    if not app.return_code:
        return
    error: BaseException | None = getattr(app, "_exception", None)
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    what = f"{type(error).__name__}{where}: {error}" if error is not None else "an error"
    raise DefectError(f"the interface failed with {what}. This is a defect of kvsim.") from error
