"""Faster compilation of the engine: all parts are linked first, and then optimised once.

numba by itself optimises every function together with all functions that it calls, generates machine code, and repeats
this for each caller. With some 150 parts that call each other, this takes most of the compilation time, although only
the code of the entry point ever runs. In this module, a part is only translated to LLVM code. The entry point, which
Python calls, is linked with all parts and optimised, and `object_code` keeps its machine code.

numba documents how to build a compiler from its passes, but not its code libraries. With a release of numba for which
this module was not tested, parts are compiled in numba's usual way: the result is the same, but it takes longer.
"""

from __future__ import annotations

from typing import Any, ClassVar

import llvmlite.binding as llvm
import numba
from numba import _dynfunc
from numba.core import cgutils, ir
from numba.core.analysis import dead_branch_prune
from numba.core.codegen import CodeLibrary, JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import FunctionPass, LoweringPass, PassManager, register_pass
from numba.core.ir_utils import get_definition, guard
from numba.core.lowering import Lower
from numba.core.typed_passes import (
    AnnotateTypes,
    BaseNativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, ReconstructSSA, TranslateByteCode

KNOWN_RELEASES = frozenset({(0, 68)})
"""Releases of numba with which this module was tested."""


def is_known(release: str = numba.__version__) -> bool:
    """Tell whether this module was tested with `release` of numba."""
    return tuple(int(number) for number in release.split(".")[:2]) in KNOWN_RELEASES


class PartLibrary(JITCodeLibrary):
    """LLVM code of one part (a function of the engine), with references to others. `EntryLibrary` links it."""

    def __init__(self, codegen: Any, name: str) -> None:
        CodeLibrary.__init__(self, codegen, name)
        self._linking_libraries: list[JITCodeLibrary] = []
        self.texts: list[str] = []
        """LLVM assembly of the part, one text for each module that numba makes for it."""

    def add_ir_module(self, ir_module: Any) -> None:
        """Keep the assembly of a module of the part. numba's own method optimises the module instead."""
        self.texts.append(str(ir_module))

    def finalize(self) -> None:
        """Mark the part as complete. Unlike numba's own method, generate no machine code: `EntryLibrary` optimises the
        part, and `object_code` generates machine code.
        """
        self._finalized = True

    def all_called(self) -> list[JITCodeLibrary]:
        """Return this library and all libraries whose functions it calls, directly or through other parts."""
        found: dict[JITCodeLibrary, None] = {}
        left: list[JITCodeLibrary] = [self]
        while left:
            library = left.pop()
            if library not in found:
                found[library] = None
                left.extend(library._linking_libraries if isinstance(library, PartLibrary) else ())
        return list(found)


class EntryLibrary(PartLibrary):
    """LLVM code of the entry point and of all parts that it calls. Python calls only the entry point."""

    def finalize(self) -> None:
        """Link the entry point with the parts, optimised together. `object_code` makes machine code of the result."""
        module = self._final_module = llvm.parse_assembly(str(self._codegen._create_empty_module("parts")))
        for library in self.all_called():
            if isinstance(library, PartLibrary):
                for text in library.texts:
                    module.link_in(llvm.parse_assembly(text))
            else:
                module.link_in(library._get_module_for_linking(), preserve=True)
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration and not function.name.startswith("cfunc."):
                function.linkage = "internal"  # lets LLVM inline a function that has one caller, and drop it
        # Higher levels and unrolled loops take twice as long to compile, and the code is not measurably faster.
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(module, builder)
        self._finalized = True


class PartLower(Lower):
    """numba's translation of a function to LLVM code, reduced to the features that parts use."""

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """Translate a binary operation by its inferred signature, without numba's special case for constants."""
        context, signature = self.context, self.fndesc.calltypes[expr]
        operands = [
            context.cast(self.builder, self.loadvar(each.name), self.typeof(each.name), kind)
            for each, kind in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        types = Remembering.of(context.typing_context)
        function = types.resolve_value_type(op)
        types.resolve_function_type(function, signature.args, {})
        implementation = context.get_function(function, signature)
        return context.cast(self.builder, implementation(self.builder, operands), signature.return_type, resty)

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:  # noqa: ARG002  for debuggers
        """Allocate a variable, without information for debuggers."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(BaseNativeLowering):
    """Pass of the compiler that translates a part to LLVM code."""

    _name = "part_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        """Class that translates a part to LLVM code."""
        return PartLower


@register_pass(mutates_CFG=True, analysis_only=False)
class OfferToCallers(LoweringPass):
    """Pass of the compiler that makes the part just translated callable by other parts."""

    _name = "offer_to_callers"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Register the part with numba under a key made for it, because it has no machine code whose address could be
        the key. Return True: the state has changed.
        """
        lowered, library = state["cr"], state.library
        name = lowered.fndesc.qualname
        key = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, name, 0, lowered.env, (library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class OmitFeatures(FunctionPass):
    """Pass of the compiler that removes, from a part, the branches that a constant setting rules out. It runs before
    type inference, so parts that only these branches call are not compiled at all.
    """

    _name = "omit_features"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Replace each read of a constant setting by the setting's value, if the first argument is an engine with such
        settings. Then remove the branches that are never taken. Return True if the argument is such an engine.
        """
        constants = getattr(state.args[0], "constants", None)
        if not constants:
            return False
        function = state.func_ir
        for each in [each for block in function.blocks.values() for each in block.find_insts(ir.Assign)]:
            path = self._path_of(function, each.value)
            if path[:2] == (0, "settings") and path[2:] and path[2] in constants:
                each.value = ir.Const(constants[path[2]], each.loc)
                function._definitions[each.target.name] = [each.value]
        dead_branch_prune(function, state.args)
        return True

    def _path_of(self, function: Any, value: Any) -> tuple[Any, ...]:
        """Return the path of `value`: the index of an argument of the part, and the attributes read from it. Return an
        empty tuple if `value` is no such read. The path of `engine.settings.x` is (0, "settings", "x") if the engine is
        the first argument.
        """
        if isinstance(value, ir.Arg):
            return (value.index,)
        if not isinstance(value, ir.Expr) or value.op != "getattr":
            return ()
        path = self._path_of(function, guard(get_definition, function, value.value))
        return (*path, value.attr) if path else ()


class PartCompiler(CompilerBase):
    """Compiler that runs only those passes of numba that parts need. Parts have no closures or exceptions."""

    library = PartLibrary

    def define_pipelines(self) -> list[Any]:
        """Return the passes that translate one part to LLVM code."""
        self.state.flags.no_compile = True
        self.state.library = self.library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.typingctx = Remembering.of(self.state.typingctx)
        passes = PassManager("part")
        for each in (
            TranslateByteCode, FixupArgs, OmitFeatures, ReconstructSSA, NopythonTypeInference, PreLowerStripPhis,
            AnnotateTypes, PartLowering, OfferToCallers, NoPythonBackend,
        ):  # fmt: skip
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


class EntryCompiler(PartCompiler):
    """Compiler that translates the entry point, and links it with the parts."""

    library = EntryLibrary


class Remembering:
    """A wrapper of a typing context of numba that caches the types it finds. A compilation asks for types thousands of
    times, but only a few hundred of these queries differ.
    """

    _made: ClassVar[dict[Any, Remembering]] = {}

    def __init__(self, context: Any) -> None:
        """Wrap the typing context `context`, with empty caches."""
        self._context = context
        self._signatures: dict[Any, Any] = {}
        self._attributes: dict[Any, Any] = {}
        self._values: dict[int, Any] = {}

    @classmethod
    def of(cls, context: Any) -> Remembering:
        """Return the wrapper of `context`, always the same one; `context` itself if it is a wrapper."""
        if isinstance(context, cls):
            return context
        return cls._made.setdefault(context, cls(context))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        """Return the signature of `function` for arguments of these types; None if it cannot be called with them. At
        the first query for these types, numba also compiles the function.
        """
        key = id(function), tuple(args), tuple(kws.items())
        if key not in self._signatures:
            found = self._context.resolve_function_type(function, args, kws)
            if found is None:
                return None
            self._signatures[key] = function, found  # keeps `function` alive, since the key is its id
        return self._signatures[key][1]

    def resolve_value_type(self, value: Any) -> Any:
        """Return the type of a function or constant that a part refers to."""
        if id(value) not in self._values:
            self._values[id(value)] = value, self._context.resolve_value_type(value)
        return self._values[id(value)][1]

    def resolve_getattr(self, kind: Any, name: str) -> Any:
        """Return the type of an attribute of a type; None if the type has no such attribute."""
        found = self._attributes.get((kind, name))
        if found is None:
            found = self._attributes[kind, name] = self._context.resolve_getattr(kind, name)
        return found
