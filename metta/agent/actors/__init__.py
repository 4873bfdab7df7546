"""Actors: ways to draw actions from a policy, each compared with it."""
