"""Checks that are repeated, because a broker of a KRaft cluster applies a change a little after the response."""

import time
from collections.abc import Callable

from compat_tests import limits


def eventually(check: Callable[[], None]) -> None:
    """Call `check` until it raises no error. Raises its last error if it does not succeed in time."""
    give_up_at = time.monotonic() + limits.CONDITION_S
    while True:
        try:
            check()
        except (AssertionError, KeyError, ValueError):
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)
        else:
            return
