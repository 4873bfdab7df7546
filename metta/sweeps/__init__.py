"""Sweeps and repeated seeds: what is tried next, and what came of it."""
