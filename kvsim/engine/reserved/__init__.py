"""Memory without blocks: contiguous extents, one for each sequence, and the padded rectangle of a static batch."""
