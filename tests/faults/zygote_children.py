"""What the processes of test_zygote do."""

import os
import sys
import time
from pathlib import Path

_STATE = {"prepared": False}


def prepare() -> None:
    _STATE["prepared"] = True


def write(path: str, text: str) -> None:
    prepared = ", prepared" if _STATE["prepared"] else ""
    Path(path).write_text(f"{text} from {os.getpid()}{prepared}")


def leave(code: int) -> None:
    sys.exit(code)


def fail() -> None:
    raise ValueError("on purpose")


def sleep() -> None:
    time.sleep(60)


def interrupt() -> None:
    raise KeyboardInterrupt
