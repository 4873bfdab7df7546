"""Collecting: act, step, record; what a rollout holds, and what ended in it."""
