"""Dialogs that open over a playing screen: find, help, lessons, remedies, radix tree, command palette."""
