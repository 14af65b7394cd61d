"""SGLang: its radix tree, the slots of its pool, and its scheduler."""
