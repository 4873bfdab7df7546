"""Saving and resuming: what is state, under which conditions it counts, how it is written."""
