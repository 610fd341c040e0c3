"""The rule that determines the tests that need a process."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager

import pytest

from compat_tests.backends import BROKERS
from compat_tests.tiers import ProcessGuard, reaches_starter


def directly() -> None:
    subprocess.run([sys.executable])


def by_a_helper() -> None:
    directly()


def by_a_nested_function() -> Callable[[], None]:
    return lambda: by_a_helper()


@contextmanager
def as_context():
    directly()
    yield


def by_a_context() -> None:
    with as_context():
        pass


def by_a_table() -> object:
    return BROKERS["odradek"]


class Starter:
    def start(self) -> None:
        directly()


class Inherits(Starter):
    pass


def by_a_class() -> None:
    Inherits()


def without() -> int:
    return len(sys.argv)


@pytest.mark.parametrize(
    "function", [directly, by_a_helper, by_a_nested_function, by_a_context, by_a_table, by_a_class]
)
def test_a_function_that_starts_a_process_is_found(function: Callable[..., object]) -> None:
    assert reaches_starter((function,))


def test_a_function_that_starts_none_is_not_found() -> None:
    assert not reaches_starter((without,))


def test_a_process_is_refused_while_a_quick_test_runs(request: pytest.FixtureRequest) -> None:
    guard = ProcessGuard()
    guard.audit("subprocess.Popen", ())
    running = guard.pytest_runtest_protocol(request.node)
    next(running)
    guard.audit("open", ())
    with pytest.raises(RuntimeError, match="starts a process; mark the test `process`"):
        guard.audit("subprocess.Popen", ())
    with pytest.raises(StopIteration):
        next(running)
    guard.audit("subprocess.Popen", ())
