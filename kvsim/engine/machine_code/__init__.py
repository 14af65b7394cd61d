"""The engine as machine code: numba's types for it, linking of its functions, and object files on disk."""
