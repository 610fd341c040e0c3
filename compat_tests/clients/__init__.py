"""One interface for three client libraries, so that one suite of scenarios runs with each of them.

Each module implements `compat_tests.clients.common` for one library. FEATURES lists the optional capabilities of a
library; scenarios that need a missing one are not run with it.
"""

from importlib import import_module
from types import ModuleType

NAMES = ("kafka_python", "confluent", "aiokafka")


def load(name: str) -> ModuleType:
    """Return the adapter module of a library: FEATURES, Producer, Consumer and Admin."""
    return import_module(f"compat_tests.clients.{name}_adapter")
