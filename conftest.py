"""The order of the tests, their pytest-xdist groups (one process each), their tiers, and fixtures of several folders.

`--quick` (`make test-quick`) leaves out the tests that need a process of their own and those marked `slow`:
`tiers`.

`--backend=odradek,kafka` (or ODRADEK_COMPAT_BACKEND) says against which brokers tests of clients and of Spark run;
without it they run against Odradek. Those marked `side_by_side` have to hold for Apache Kafka too, which proves that
they test the right thing: `make parity`.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from compat_tests import tiers
from compat_tests.backends import BROKERS

SPARKS = 2
"""How many processes start a Spark for the tests that share one."""
USUAL_S = 60
"""What a test may take that says nothing of it, as far as its place is concerned."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", help="brokers that tests run against: odradek, kafka or both with a comma")
    parser.addoption("--quick", action="store_true", help="only tests that start no process and are not slow")


MOST_ITERATION_MS = 1000
"""CPU time of a broker's reactor iteration above which the test that used the broker fails."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("ODRADEK_MOST_ITERATION_MS", str(MOST_ITERATION_MS))
    _backends(config)  # a wrong name is said once, and not of each file
    config.addinivalue_line("markers", "side_by_side: has to hold for Apache Kafka too, to prove the test itself")
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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """The tests of a file run in one process, and those of all files that share a Spark in `SPARKS` of them.

    These come first, then files with tests that may take longest, then those that start processes: at the end no
    process is left with one of them alone.
    """
    if config.getoption("--quick"):
        _keep_quick(config, items)
    by_file: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_file[_file(item)].append(item)
    files = sorted(by_file, key=lambda file: _place(file, by_file[file]))
    places = {file: place for place, file in enumerate(files)}
    _group(files, by_file)
    yield  # xdist reads the groups; pytest takes files apart to have what shares a parameter together
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
