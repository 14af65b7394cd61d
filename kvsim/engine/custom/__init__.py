"""Engine side of custom policies in Python: requests, blocks and units as a policy sees them; and optimal eviction."""
