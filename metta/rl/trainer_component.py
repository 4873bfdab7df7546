"""`train` for scripts that were written against the component-based trainer."""

from metta.rl.trainer import train

__all__ = ["train"]
