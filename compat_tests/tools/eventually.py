"""Checks that are repeated, because a broker of a KRaft cluster applies a change a little after the response."""

from collections.abc import Callable

from compat_tests import limits
from compat_tests.clients.common import repeat


def eventually(check: Callable[[], None]) -> None:
    """Call `check` until it raises no error. Raises its last error if it does not succeed in time."""
    repeat(check, lambda error: isinstance(error, (AssertionError, KeyError, ValueError)), limits.CONDITION_S)
