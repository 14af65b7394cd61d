"""`python -m kvsim`: the command line, where the script `kvsim` is not on the path."""

from kvsim.cli import main

main()
