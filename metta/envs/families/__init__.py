"""Environments that other packages bring: found by their ids, and prepared for learning."""
