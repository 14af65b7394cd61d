"""The keys at the bottom: where they do not all fit, the last ones are left out, and none is cut."""

from __future__ import annotations

from textual.widgets import Footer
from textual.widgets._footer import FooterLabel


class RankedFooter(Footer):
    """Shows as many keys as there is room for, the most important first."""

    def on_resize(self) -> None:
        """Choose again."""
        self._choose()

    async def recompose(self) -> None:
        """Choose again among other keys."""
        await super().recompose()
        self._choose()

    def _choose(self) -> None:
        for key in self.children:
            key.display = True
        self.call_after_refresh(self._leave_out)

    def _leave_out(self) -> None:
        """Hide every key that would end beyond the palette's, which stands at the right, or beyond the screen."""
        palette = [key for key in self.children if key.has_class("-command-palette") and key.size.width]
        room = self.size.width - sum(key.outer_size.width for key in palette)
        before = None
        for key in self.children:
            if key not in palette and key.virtual_region.right > room:
                key.display = False
                if isinstance(key, FooterLabel) and before is not None:  # the keys that it is the name of
                    before.display = False
            before = key
