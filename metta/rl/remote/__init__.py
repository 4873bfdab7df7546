"""Collecting elsewhere: shards that other processes, or actors on a Ray cluster, collect."""
