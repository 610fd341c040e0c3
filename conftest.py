"""The order of the tests, their pytest-xdist groups (one process each), their tiers, and fixtures of several folders.

`--quick` (`make test-quick`) omits the tests that need a separate process and those marked `slow`: `tiers`.

`--backend=odradek,kafka` (or ODRADEK_COMPAT_BACKEND) selects the brokers for tests of clients and of Spark; the default
is Odradek. Tests marked `side_by_side` must also pass with Apache Kafka, which verifies the tests themselves:
`make parity`.
"""

import gc
import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from compat_tests import tiers
from compat_tests.backends import BROKERS

SPARKS = 2
"""Number of processes that start Spark for the tests that share a session."""
USUAL_S = 60
"""Assumed duration limit of a test without a timeout of its own, for the order of the tests."""

GC_THRESHOLD = 10_000
"""New objects until a collection of the youngest generation. With Python's default (700), collections take a tenth of
the CPU time of the quick tier."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", help="brokers that tests run against: odradek, kafka or both with a comma")
    parser.addoption("--quick", action="store_true", help="only tests that start no process and are not slow")


MOST_ITERATION_MS = 1000
"""CPU time of a broker's reactor iteration above which the test that used the broker fails."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("ODRADEK_MOST_ITERATION_MS", str(MOST_ITERATION_MS))
    _backends(config)  # an unknown name is reported once, not for each file
    config.addinivalue_line("markers", "side_by_side: must also pass with Apache Kafka, to verify the test itself")
    config.addinivalue_line("markers", "process: starts a process, though compat_tests.tiers does not detect it")
    config.addinivalue_line("markers", "slow: starts no process, but takes too long for --quick")
    if config.getoption("--quick"):
        config.pluginmanager.register(tiers.ProcessGuard())


@pytest.hookimpl(tryfirst=True)  # so that the broker is named first
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _backends(metafunc.config), scope="session")


def _backends(config: pytest.Config) -> list[str]:
    names = (config.getoption("--backend") or os.environ.get("ODRADEK_COMPAT_BACKEND") or "odradek").split(",")
    if unknown := set(names) - set(BROKERS):
        raise pytest.UsageError(f"--backend: unknown {', '.join(unknown)}; known are {', '.join(BROKERS)}")
    return names


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude modules and collected tests, which live as long as the process, from the garbage collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Group the tests: those of a file run in one process, those of all files that share Spark in `SPARKS` processes.

    The latter are first, then files with tests of a long duration, then those that start processes, so that at the end
    no process runs one of them alone.
    """
    if config.getoption("--quick"):
        _keep_quick(config, items)
    by_file: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_file[_file(item)].append(item)
    files = sorted(by_file, key=lambda file: _place(file, by_file[file]))
    places = {file: place for place, file in enumerate(files)}
    _group(files, by_file)
    yield  # xdist reads the groups; pytest reorders files to join tests with the same parameter
    items.sort(key=lambda item: places[_file(item)])


def _keep_quick(config: pytest.Config, items: list[pytest.Item]) -> None:
    quick: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (quick if tiers.is_quick(item) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = quick


def _group(files: list[str], by_file: Mapping[str, list[pytest.Item]]) -> None:
    shared_s = {f"spark-{number}": 0.0 for number in range(SPARKS)}
    for file in files:
        group = file
        if _shares_spark(by_file[file]):
            group = min(shared_s, key=lambda name: shared_s[name])
            shared_s[group] += sum(_allowed_s(item) or USUAL_S for item in by_file[file])
        for item in by_file[file]:
            item.add_marker(pytest.mark.xdist_group(group))


def _place(file: str, items: list[pytest.Item]) -> tuple[bool, float, bool]:
    return not _shares_spark(items), -max(map(_allowed_s, items)), file.startswith("odradek")


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _shares_spark(items: list[pytest.Item]) -> bool:
    return any("spark" in getattr(item, "fixturenames", ()) for item in items)


def _allowed_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None and marker.args else 0.0


_numbers = itertools.count()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, for topics and groups."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.originalname.removeprefix("test_"))
    return f"{test[:60]}-{next(_numbers)}"
