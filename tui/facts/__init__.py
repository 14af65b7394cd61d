"""Text about a moment: lines of label and value, headlines, the story of a run. Nothing here draws."""
