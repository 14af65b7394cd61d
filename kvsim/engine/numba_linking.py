"""How parts become one piece of machine code: put together as they are, then optimised once.

numba optimises every function together with all that it calls, makes machine code of that, and does the same again for
each of its callers. Of some 150 parts that call each other this takes several times as long as all the rest, and only
the last piece ever runs. Here a part is only translated. What is called from Python is optimised with all of them.

numba lets a compiler be put together from its own passes, but does not document what a library of code is made of. In
a release that was not tried, parts are compiled as numba does it by itself: to the same effect, in more time.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import NativeLowering

KNOWN_RELEASES = frozenset({(0, 68)})
"""Releases of numba in which this was tried."""


def is_known(release: str = numba.__version__) -> bool:
    """Whether this way of compiling was tried with a release of numba."""
    return tuple(int(number) for number in release.split(".")[:2]) in KNOWN_RELEASES


class PartLibrary(JITCodeLibrary):
    """The code of one part and of all that it calls, to be linked and never run by itself."""

    def _optimize_final_module(self) -> None:
        """Leave that to the library that all parts end up in."""

    def _finalize_final_module(self) -> None:
        """Have no machine code made of it."""
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class OfferToCallers(LoweringPass):
    """Let other functions call the one that was translated."""

    _name = "offer_to_callers"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Register the function under a key of its own, where numba would take the address of its machine code."""
        lowered, library = state["cr"], state.library
        name = lowered.fndesc.qualname
        key = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, name, 0, lowered.env, (library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


class PartCompiler(CompilerBase):
    """numba's own passes, up to machine code."""

    def define_pipelines(self) -> list[Any]:
        """The passes for one part."""
        self.state.flags.no_compile = True
        self.state.library = PartLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(OfferToCallers, NativeLowering)
        passes.finalize()
        return [passes]
