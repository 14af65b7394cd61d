"""Texts and figures that the panels show: about requests, units, steps and whole runs. Nothing here draws."""
