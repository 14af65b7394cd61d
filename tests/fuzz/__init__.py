"""Structure-aware fuzzing of everything that kvsim reads: files of every kind, and the flags of its commands."""
