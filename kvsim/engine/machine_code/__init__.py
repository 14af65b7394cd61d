"""Compilation of the engine to machine code: numba's types for its records, linking, and object files on disk."""
