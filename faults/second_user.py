"""Acts of another user of the same machine, in a process that has only that user's rights."""

import os
import traceback
from collections.abc import Callable

USER = 54_321
"""An unused user id."""


def can_change_user() -> bool:
    return os.getuid() == 0


def as_second_user(act: Callable[[], None]) -> None:
    """Call `act` as the other user; `PermissionError` where the system kept it from doing so."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            os.umask(0)
            act()
            code = 0
        except PermissionError:
            code = 2
        except BaseException:  # noqa: BLE001  # the end of a process: it can only report why
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 2:
        raise PermissionError("the second user was refused")
    assert code == 0, f"the act of the second user ended with {code}"
