"""Evaluating policies: in this process, in another one beside training, or by workers elsewhere."""
