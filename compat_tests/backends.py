"""The brokers that tests run against, by the names that `--backend` takes: both have the same surface."""

from typing import Any

from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from odradek.testing import OdradekBroker

Broker = ApacheKafkaBroker | OdradekBroker
BROKERS: dict[str, type[Any]] = {"odradek": OdradekBroker, "kafka": ApacheKafkaBroker}
