"""Memory without blocks: contiguous extents, and padded rectangles."""
