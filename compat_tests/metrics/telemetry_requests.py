"""Requests about client metrics, valid and invalid, and the responses of a broker in a form that can be compared."""

import time
from collections.abc import Sequence
from typing import Any

from compat_tests.clients.common import wait_until
from odradek.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
)
from odradek.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.list_config_resources import ListConfigResourcesRequest
from odradek.protocol.messages.push_telemetry import PushTelemetryRequest
from odradek.server.tests.wire import Wire

CLIENT_METRICS = 16
SET, DELETE, APPEND, SUBTRACT = range(4)
INTERVAL_S = 2.0
"""Push interval: requests within it are throttled, and so have to follow each other sooner also on a busy machine."""

Change = tuple[str, int, str | None]

CHANGES: list[list[Change]] = [
    *(
        [(name, SET, value)]
        for name, value in (
            ("interval.ms", "100"), ("interval.ms", "99"), ("interval.ms", "3600001"), ("interval.ms", "x"),
            ("interval.ms", ""), ("interval.ms", " 200 "), ("interval.ms", "99999999999"), ("interval.ms", None),
            ("bogus", "1"), ("metrics", ""), ("metrics", "*"), ("metrics", "a,b,a"), ("metrics", "a,,b"),
            ("metrics", " a , b "), ("match", "client_id=x"), ("match", "bogus=x"), ("match", "client_id"),
            ("match", "client_id="), ("match", "client_id=a=b"), ("match", "client_id=["), ("match", ""),
            ("match", "client_id=(?<n>x)"), ("match", " client_id = b.* , client_software_name=x"),
            ("match", "client_id=x,client_id=y"), ("match", "client_id=x,client_id=x"), ("match", "client_id=a{1,2}"),
            ("match", "client_id=="), ("match", "=x"), ("match", "client_instance_id=A,client_source_address=1"),
        )
    ),
    [("metrics", APPEND, "a")], [("metrics", SUBTRACT, "a")], [("interval.ms", APPEND, "5")], [("bogus", APPEND, "5")],
    [("interval.ms", SET, "300"), ("interval.ms", SET, "400")], [("bogus", DELETE, None)], [("bogus", DELETE, "x")],
    [("metrics", DELETE, None)], [("metrics", SET, "a"), ("interval.ms", SET, "1"), ("bogus", SET, "x")], [],
]  # fmt: skip
"""Changes of one resource by IncrementalAlterConfigs. Apache Kafka 4.3 fails for an unknown operation."""

NAMES = ("", "a b/c%\u00e4,x", "n" * 300, ".", "..")


class Asker:
    """Sends requests to one broker."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.wire = Wire(port)

    def change(self, name: str, changes: Sequence[Change], *, validate_only: bool = False) -> int:
        configs = [
            IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=name, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        return int(self.wire.ask(request).responses[0].error_code)

    def replace(self, name: str, values: dict[str, str | None]) -> int:
        configs = [AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in values.items()]
        resource = AlterConfigsRequestAlterConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=name, configs=configs
        )
        return int(self.wire.ask(AlterConfigsRequest(resources=[resource])).responses[0].error_code)

    def describe(self, name: str, keys: list[str] | None = None) -> Any:
        resource = DescribeConfigsRequestDescribeConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=name, configuration_keys=keys
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
        result = self.wire.ask(request).results[0]
        return result.error_code, [
            (
                one.name, one.value, one.read_only, one.config_source, one.is_sensitive, one.config_type,
                one.documentation, [(synonym.name, synonym.value, synonym.source) for synonym in one.synonyms],
            )
            for one in result.configs
        ]  # fmt: skip

    def list_names(self, version: int = 1) -> list[str]:
        request = ListConfigResourcesRequest(resource_types=[CLIENT_METRICS] if version else [])
        return sorted(one.resource_name for one in self.wire.ask(request, version).config_resources)

    def wait_for(self, names: list[str]) -> None:
        """Apache Kafka acknowledges a change before its brokers have the metadata."""
        wait_until(lambda: self.list_names() == names)

    def get(self, instance_id: bytes, wire: Wire | None = None) -> Any:
        return (wire or self.wire).ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id))

    def push(
        self,
        instance_id: bytes,
        subscription_id: int,
        metrics: bytes = b"",
        codec: int = 0,
        *,
        terminating: bool = False,
    ) -> int:
        request = PushTelemetryRequest(
            client_instance_id=instance_id,
            subscription_id=subscription_id,
            terminating=terminating,
            compression_type=codec,
            metrics=metrics,
        )
        return int(self.wire.ask(request).error_code)

    def connect(self) -> Wire:
        return Wire(self._port)

    def close(self) -> None:
        self.wire.socket.close()


def list_advertised(port: int) -> list[tuple[int, int, int]]:
    """Return the telemetry APIs that a broker advertises."""
    with Wire(port) as wire:
        response = wire.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
        return [(one.api_key, one.min_version, one.max_version) for one in response.api_keys if one.api_key in (71, 72)]


def answer_changes(asker: Asker) -> dict[str, Any]:
    """Send changes of configurations; return by request what the broker answered. No subscription remains."""
    answers: dict[str, Any] = {
        "missing": asker.describe("none"), "no name": asker.describe(""), "none": asker.list_names(0),
    }  # fmt: skip
    for number, changes in enumerate(CHANGES):
        answers[f"{number} {changes}"] = asker.change("s", changes)
    asker.wait_for(["s"])
    wait_until(lambda: asker.describe("s", ["metrics"])[1][0][1] == "")
    answers |= {f"describe {keys}": asker.describe("s", keys) for keys in (None, ["interval.ms"], ["none"])}
    for name in NAMES:
        answers[f"name {name}"] = asker.change(name, [("interval.ms", SET, "1000")])
    answers["validate"] = asker.change("v", [("interval.ms", SET, "1000")], validate_only=True)
    answers["validate, invalid"] = asker.change("v", [("interval.ms", SET, "1")], validate_only=True)
    asker.wait_for(sorted(["s", *NAMES[1:]]))
    answers |= {f"list {version}": asker.list_names(version) for version in (0, 1)}
    replacements: list[dict[str, str | None]] = [
        {"interval.ms": "5000", "metrics": "x."}, {"bogus": "1"}, {"interval.ms": "1"}, {"interval.ms": None},
    ]  # fmt: skip
    for values in replacements:
        answers[f"replace {values}"] = asker.replace("s", values)
    wait_until(lambda: asker.describe("s", ["metrics"])[1][0][1] == "x.")
    answers["replaced"] = asker.describe("s")
    answers["replace without name"] = asker.replace("", {})
    for name in ("s", *NAMES[1:]):
        answers[f"remove {name}"] = asker.replace(name, {})
    asker.wait_for([])
    answers["removed"] = asker.describe("s")
    return answers


def answer_pushes(asker: Asker, metrics: bytes, codec: int) -> list[Any]:
    """Get a subscription and push `metrics`; return what the broker answered. The subscription remains."""
    answers: list[Any] = []

    def get(instance_id: bytes, wire: Wire | None = None) -> Any:
        found = asker.get(instance_id, wire)
        answers.append((
            "get", found.error_code, found.accepted_compression_types, found.push_interval_ms,
            found.telemetry_max_bytes, sorted(found.requested_metrics),
            found.client_instance_id in (bytes(16), instance_id),
        ))  # fmt: skip
        return found

    def push(*arguments: Any, **options: Any) -> None:
        answers.append(("push", asker.push(*arguments, **options)))

    asker.change("p", [("interval.ms", SET, str(round(INTERVAL_S * 1000))), ("metrics", SET, "b,a")])
    asker.wait_for(["p"])
    wait_until(lambda: asker.get(bytes(16)).requested_metrics != [])
    found = get(bytes(16))
    ids = (found.client_instance_id, found.subscription_id)
    get(ids[0])
    push(*ids, metrics, codec)
    push(*ids, metrics, codec)
    push(ids[0], ids[1] + 1)
    time.sleep(INTERVAL_S)
    push(ids[0], ids[1] + 1)
    get(ids[0])
    time.sleep(INTERVAL_S)
    push(*ids, metrics, 9)
    get(ids[0])
    time.sleep(INTERVAL_S)
    push(*ids, bytes(2_000_000))
    time.sleep(INTERVAL_S)
    push(*ids, b"not compressed", 1)
    time.sleep(INTERVAL_S)
    push(*ids, metrics, codec, terminating=True)
    push(*ids, terminating=True)
    push(*ids)
    for reserved in (0, 1):
        push(bytes([0] * 15 + [reserved]), 1)
    own = bytes(range(16))
    push(own, 1)
    # The number is that of Apache Kafka for the same metrics.
    answers.append(get(own).subscription_id)
    with asker.connect() as other:
        get(own, other)
    return answers
