"""The brokers that tests run against, by the values of `--backend`; both have the same interface."""

from typing import Any

from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from odradek.testing import OdradekBroker

Broker = ApacheKafkaBroker | OdradekBroker
BROKERS: dict[str, type[Any]] = {"odradek": OdradekBroker, "kafka": ApacheKafkaBroker}
