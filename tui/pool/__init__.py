"""The pool as a picture: owner, state and recent changes of each block. Textual is not known here."""
