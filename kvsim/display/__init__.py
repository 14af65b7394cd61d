"""What everything that shows something has in common: text that was made safe, and colours."""
