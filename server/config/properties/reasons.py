"""Reasons why properties of Apache Kafka are accepted without effect."""

from typing import Final

from odradek.log.config import CLUSTER_ONLY, NO_REMOTE_STORAGE

__all__ = [
    "CLUSTER_ONLY",
    "JAVA_CLASS",
    "NO_CONSUMER_GROUPS",
    "NO_CORDONING",
    "NO_EARLY_START",
    "NO_JMX",
    "NO_KRAFT",
    "NO_REMOTE_STORAGE",
    "NO_THREADS",
    "ONE_PROTOCOL",
    "OPENSSL",
    "OPERATING_SYSTEM_CHOOSES",
]

JAVA_CLASS: Final = "Java classes cannot be loaded"
NO_CONSUMER_GROUPS: Final = "only the classic group protocol is supported"
NO_CORDONING: Final = "log directories cannot be cordoned"
NO_EARLY_START: Final = "all listeners open when the broker has started"
NO_JMX: Final = "there are no JMX metrics"
NO_KRAFT: Final = "there is no KRaft quorum"
NO_THREADS: Final = "one event loop does the work"
ONE_PROTOCOL: Final = "brokers use the requests of Kafka 3.9"
OPENSSL: Final = "OpenSSL provides TLS"
OPERATING_SYSTEM_CHOOSES: Final = "the operating system adapts the size"
