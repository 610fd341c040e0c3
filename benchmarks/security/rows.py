"""The rows of security, and their targets."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.rows import LARGE_BATCH, ONE_RECORD, SMALL_BATCH, Row, Target, at_least, at_most, under

PLAINTEXT, TLS, SCRAM = "PLAINTEXT", "SSL", "SASL_PLAINTEXT"
"""Listeners: without security, with TLS, and with SCRAM-SHA-256 and ACLs."""

KAFKA, OPEN, FEW_ACLS = "kafka", "open", "few-acls"
"""The brokers beside which a row is measured: Apache Kafka with equal settings, Odradek without authentication and
authorizer, and Odradek with a few ACLs instead of 10,000."""


class SecurityRow(NamedTuple):
    """A row, the listener of its load, and the broker beside which it is measured."""

    row: Row
    listener: str
    beside: str = KAFKA


def _requests(name: str, title: str, connections: int, *targets: Target) -> Row:
    return Row(name, title, "requests", {**ONE_RECORD, "connections": connections}, targets)


ROWS: tuple[SecurityRow, ...] = (
    SecurityRow(
        Row("tls-produce-large", "produce 1 KB records, 1 MB batches, over TLS", "produce", LARGE_BATCH,
            (at_least("mb_per_s", 1.0),)),
        TLS,
    ),
    SecurityRow(
        Row("tls-produce-16k", "produce 1 KB records, 16 KB batches, over TLS", "produce", SMALL_BATCH,
            (at_least("mb_per_s", 1.0),)),
        TLS,
    ),
    SecurityRow(
        Row("tls-consume", "consume 1 KB records, 1 MB a fetch, over TLS", "consume", SMALL_BATCH,
            (at_least("mb_per_s", 1.0),)),
        TLS,
    ),
    SecurityRow(_requests("tls-requests-8", "one 100 B record a request, 8 connections, over TLS", 8), TLS),
    SecurityRow(_requests("scram-requests-8", "one 100 B record a request, 8 connections, SCRAM and ACLs", 8), SCRAM),
    SecurityRow(
        Row("tls-handshakes", "new connections with TLS, and the delays of another client", "handshakes",
            targets=(at_least("handshakes_per_s", 1.0), under("p999_ms", 20))),
        TLS,
    ),
    SecurityRow(
        Row("scram-handshakes", "new connections with SCRAM, and the delays of another client", "handshakes",
            targets=(at_least("handshakes_per_s", 1.0), under("p999_ms", 20))),
        SCRAM,
    ),
    SecurityRow(
        _requests("rights-1", "one 100 B record a request, with SCRAM and ACLs beside without, 1 connection", 1,
                  at_least("requests_per_s", 0.95)),
        SCRAM, OPEN,
    ),
    SecurityRow(
        _requests("rights-8", "one 100 B record a request, with SCRAM and ACLs beside without, 8 connections", 8,
                  at_least("requests_per_s", 0.95)),
        SCRAM, OPEN,
    ),
    SecurityRow(
        _requests("many-acls-8", "one 100 B record a request, 10,000 ACLs beside a few, 8 connections", 8,
                  at_least("requests_per_s", 0.95), at_most("cpu_us_per_request", 1.05)),
        SCRAM, FEW_ACLS,
    ),
)  # fmt: skip
