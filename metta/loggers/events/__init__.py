"""The event log: its lines, its file, its readers, and the history read from it."""
