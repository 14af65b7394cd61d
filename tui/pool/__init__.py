"""Pictures of the memory pool, as arrays of characters and colours: owner, state and recent change of each block.

Nothing here imports Textual; `widgets` put the pictures on a screen.
"""
