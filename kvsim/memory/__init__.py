"""Memory without time: allocators, and the states of slots. This package knows no clock, no future and no file."""
