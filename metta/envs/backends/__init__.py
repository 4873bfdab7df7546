"""Vectorised environments behind `VecEnv`: serial, multi-process, Gymnasium's own."""
