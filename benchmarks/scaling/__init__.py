"""What several processes gain: paired ratios, measured here, and a model for more nodes than are here."""
