"""Registers MinAtar's environments, which its package does on request only."""

from minatar.gym import register_envs

register_envs()
