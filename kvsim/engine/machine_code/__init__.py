"""The engine as machine code: types, linking, and object files on disk."""
