"""What a run trains on."""

from metta.curriculum.curriculum import Curriculum, Task

__all__ = ["Curriculum", "Task"]
