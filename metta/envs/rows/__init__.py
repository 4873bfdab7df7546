"""Gymnasium environments as rows of arrays: specs, masks, stepping, tasks."""
