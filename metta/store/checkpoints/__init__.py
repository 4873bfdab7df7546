"""Checkpoint folders: written whole, verified, listed, scored and pruned."""
