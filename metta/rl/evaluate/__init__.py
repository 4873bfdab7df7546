"""Evaluating policies: in this process, or in another one beside training."""
