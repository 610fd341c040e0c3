"""One face for three client libraries, so that one suite of scenarios runs through each of them.

Each module translates `compat_tests.clients.common` for one library. What a library cannot do is missing from
its FEATURES, and the scenarios that need it do not run with that library.
"""

from importlib import import_module
from types import ModuleType

NAMES = ("kafka_python", "confluent", "aiokafka")


def load(name: str) -> ModuleType:
    """The adapter module of a library: FEATURES, Producer, Consumer and Admin."""
    return import_module(f"compat_tests.clients.{name}_adapter")
