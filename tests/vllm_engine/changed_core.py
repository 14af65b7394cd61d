"""Run a script with other files instead of `vllm/v1/core`, in a process that has imported the original ones.

Its arguments are the folder of those files, the script, and the script's arguments.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module


def main() -> None:
    core = "vllm.v1.core"
    for name in [name for name in sys.modules if name.startswith("vllm.v1.")]:
        del sys.modules[name]  # modules that have imported the core must be imported again
    import_module(core).__path__[:] = [sys.argv[1]]
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
