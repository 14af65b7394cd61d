"""The pool as a picture: whose memory each block is, what it does, what has just changed. Textual is not known here."""
