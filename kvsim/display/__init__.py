"""Shared by all output: functions that make text from outside safe to show, and colours."""
