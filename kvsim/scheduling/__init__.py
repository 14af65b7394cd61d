"""Who runs next: pure state machines over `kvsim.memory`, stepped by hand. They know no clock and no file."""
