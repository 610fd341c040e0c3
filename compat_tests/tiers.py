"""Test tiers: which tests run with `--quick`.

The quick tier contains every test that needs no separate process (no Java, no database, no broker process) and is not
marked `slow`. A test needs a process if it is marked `process`, or if it, a fixture or a helper of the tests refers
to a module or fixture in `STARTERS`. With `--quick` a test that starts a process nevertheless fails, and has to be
marked.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import pytest

STARTERS = (
    "compat_tests.apache_kafka",
    "compat_tests.processes",
    "multiprocessing",
    "odradek.log.compaction.process",
    "odradek.server.cluster_tools.child_process",
    "odradek.server.cluster_tools.local_cluster",
    "odradek.server.cluster_tools.zookeeper_server",
    "odradek.testing",
    "odradek.testing_cluster",
    "pyspark.sql.session",
    "subprocess",
)
"""Modules that start processes, with those below them."""
STARTING_FIXTURES = {"odradek_broker", "odradek_cluster", "odradek_session_broker"}
"""Fixtures outside of the tests that start a process."""
STARTING_EVENTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
"""Python's audit events of a process that starts."""


def is_quick(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is None and not needs_process(item)


def needs_process(item: pytest.Item) -> bool:
    if item.get_closest_marker("process") is not None:
        return True
    if not isinstance(item, pytest.Function):
        return False
    if STARTING_FIXTURES & set(item.fixturenames):
        return True
    fixtures = [each for defined in item._fixtureinfo.name2fixturedefs.values() for each in defined]
    return reaches_starter((item.function, item.cls, *(fixture.func for fixture in fixtures)))


_harmless: dict[int, object] = {}
"""Values that have been searched without finding a starter, by id; most tests refer to the same helpers."""


@cache  # for all items of a parametrized test
def reaches_starter(found: tuple[object, ...]) -> bool:
    waiting = list(found)
    seen: dict[int, object] = {}
    while waiting:
        current = waiting.pop()
        if id(current) not in seen and id(current) not in _harmless:
            seen[id(current)] = current
            if _is_below(_module_name(current), STARTERS):
                return True
            waiting += _referred_to(current)
    _harmless.update(seen)
    return False


def _module_name(value: object) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _is_below(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _referred_to(value: object) -> Iterable[object]:
    """Return globals that a test function refers to, and members of a test class."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if "tests" not in _module_name(value):
        return []
    if isinstance(value, type):
        return [*vars(value).values(), *value.__bases__]
    if isinstance(value, FunctionType):
        names = set(_names(value.__code__))
        wrapped = getattr(value, "__wrapped__", None)
        return [wrapped, *(value.__globals__[name] for name in names if name in value.__globals__)]
    return []


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class ProcessGuard:
    """A pytest plugin for `--quick`: a test that starts a process fails."""

    def __init__(self) -> None:
        self._running = ""
        sys.addaudithook(self.audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._running = item.nodeid
        try:
            return (yield)
        finally:
            self._running = ""

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._running and event in STARTING_EVENTS:
            raise RuntimeError(f"{self._running}: {event}{arguments} starts a process; mark the test `process`")
