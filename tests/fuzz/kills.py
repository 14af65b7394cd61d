"""Kill every command that writes, at random moments: `python -m tests.fuzz.kills --times 200`.

Afterwards what it writes is as it was before, or whole; and when the command has run once more, to its end, nothing
hidden stands beside it.
"""

from __future__ import annotations

import random
import shutil

from tests.fuzz.campaign import run_campaign
from tests.fuzz.commands import run
from tests.fuzz.places import Place


def kill(place: Place, rng: random.Random, nth: int) -> str:
    """Kill the command once, every second time with an earlier result in place, and say what is wrong, if anything."""
    shutil.rmtree(place.folder)
    before = place.fill(is_there=nth % 2 == 0)
    # Most of a run reads and computes; what is dangerous comes at its end.
    moment = rng.uniform(0.0, 1.1) if nth % 4 < 2 else rng.triangular(0.5, 1.2, 0.95)
    run(place.arguments, place.folder, kill_after_s=place.took_s * moment)
    if place.is_harmed(before):
        return f"{place.target.name} is neither what it was nor whole"
    return place.puts_right()


if __name__ == "__main__":
    run_campaign(kill, "kills", times=200, share=10, description=__doc__)
