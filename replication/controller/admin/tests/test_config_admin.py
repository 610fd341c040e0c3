"""Changes and descriptions of configurations: effects, sources, and the error of each fault."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
)
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.list_config_resources import ListConfigResourcesRequest
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.controller.configs.member_changes import MemberConfigChanges
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster

E = ErrorCode
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def resources(*changed):
    return [
        IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                IncrementalAlterConfigsRequestAlterableConfig(name=n, config_operation=o, value=v)
                for n, o, v in changes
            ],
        )
        for kind, name, changes in changed
    ]


def increment(cluster, *changed, validate_only=False):
    request = IncrementalAlterConfigsRequest(validate_only=validate_only, resources=resources(*changed))
    return [r.error_code for r in run_now(cluster.config_admin.incremental_alter_configs(request)).responses]


def replace(cluster, *resources, validate_only=False):
    request = AlterConfigsRequest(
        validate_only=validate_only,
        resources=[
            AlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterConfigsRequestAlterableConfig(name=n, value=v) for n, v in configs],
            )
            for kind, name, configs in resources
        ],
    )
    return [r.error_code for r in run_now(cluster.config_admin.alter_configs(request)).responses]


def describe(cluster, kind, name, keys=None, synonyms=True, documentation=True):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequestDescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    [result] = cluster.describer.describe(request).results
    return result


def entry(cluster, kind, resource, key):
    [found] = describe(cluster, kind, resource, [key]).configs
    return found


@pytest.fixture
def cluster():
    cluster = Cluster()
    create(cluster, new("t", 2, configs={"retention.ms": "1000"}))
    return cluster


def log_config(cluster):
    return cluster.replicas.get("t", 0).log.config


def test_a_topics_configuration_takes_effect_at_once(cluster):
    changes = [("segment.bytes", SET, "2000000"), ("retention.ms", DELETE, None)]
    assert increment(cluster, (TOPIC, "t", changes)) == [0]
    assert cluster.image.topic_configs == {"t": {"segment.bytes": "2000000"}}
    assert (log_config(cluster).segment_bytes, log_config(cluster).retention_ms) == (2000000, 7 * 86400000)
    assert cluster.replicas.get("t", 1).log.config is log_config(cluster)


def test_append_and_subtract(cluster):
    def policy(operation, value):
        assert increment(cluster, (TOPIC, "t", [("cleanup.policy", operation, value)])) == [0]
        return log_config(cluster).cleanup_policy

    assert policy(APPEND, "compact") == ("delete", "compact")
    assert policy(APPEND, "compact") == ("delete", "compact")
    assert policy(SUBTRACT, "delete") == ("compact",)
    assert policy(SUBTRACT, "delete") == ("compact",)
    assert policy(DELETE, None) == ("delete",)


@pytest.mark.parametrize("resource", ["", "1"])
def test_a_value_that_grows_can_always_be_described(cluster, resource):
    changes = [(BROKER, resource, [("metric.reporters", APPEND, letter * 32_000)]) for letter in "ab"]
    assert [increment(cluster, change) for change in changes] == [[0], [E.INVALID_CONFIG]]
    described = DescribeConfigsResponse(results=[describe(cluster, BROKER, resource)])
    for version in (3, 4):
        [result] = codec.decode(DescribeConfigsResponse, version, codec.encode(described, version)).results
        assert "metric.reporters" in [found.name for found in result.configs]


def test_an_overlong_value_of_an_earlier_release_can_be_removed_and_others_changed(cluster):
    run_now(cluster.controller.put_broker_config(None, {"metric.reporters": "a" * 40_000}))
    assert increment(cluster, (BROKER, "", [("message.max.bytes", SET, "5000")])) == [0]
    assert increment(cluster, (BROKER, "", [("metric.reporters", APPEND, "b")])) == [E.INVALID_CONFIG]
    assert increment(cluster, (BROKER, "", [("metric.reporters", DELETE, None)])) == [0]
    assert cluster.image.broker_configs[None] == {"message.max.bytes": "5000"}


class Parts(str):
    """A list's text that counts the comparisons of its parts."""

    comparisons = 0

    def split(self, sep=None, maxsplit=-1):
        return [Part(part) for part in super().split(sep, maxsplit)]


class Part(str):
    __hash__ = str.__hash__

    def __eq__(self, other):
        Parts.comparisons += 1
        return super().__eq__(other)


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_long_lists_take_few_comparisons(cluster, monkeypatch, operation):
    monkeypatch.setattr(Parts, "comparisons", 0)
    first, second = [f"a{number}" for number in range(1000)], [f"b{number}" for number in range(1000)]
    increment(cluster, (BROKER, "", [("metric.reporters", SET, ",".join(first))]))
    changed = Parts(",".join(second + first[:10]))
    assert increment(cluster, (BROKER, "", [("metric.reporters", operation, changed)])) == [0]
    expected = first + second if operation == APPEND else first[10:]
    assert cluster.image.broker_configs[None]["metric.reporters"] == ",".join(expected)
    assert Parts.comparisons < 10_000


def test_entries_that_a_list_has_twice(cluster):
    def reporters(operation, value):
        assert increment(cluster, (BROKER, "", [("metric.reporters", operation, value)])) == [0]
        return cluster.image.broker_configs[None]["metric.reporters"]

    reporters(SET, "a,b,a,a")
    assert reporters(APPEND, "a,c,c") == "a,b,a,a,c"
    assert reporters(SUBTRACT, "a,x,a") == "b,a,c"


def undeclared(count, first=0, value="1", operation=SET):
    return [(f"my.setting.{number}", operation, value) for number in range(first, first + count)]


@pytest.mark.parametrize("resource", ["", "1"])
def test_a_broker_configuration_has_a_limited_number_of_names(cluster, resource):
    assert increment(cluster, (BROKER, resource, undeclared(1000))) == [0]
    assert increment(cluster, (BROKER, resource, undeclared(1, 1000))) == [E.INVALID_CONFIG]
    assert increment(cluster, (BROKER, resource, undeclared(1, value="2"))) == [0]
    assert replace(cluster, (BROKER, resource, [(n, v) for n, _, v in undeclared(1001)])) == [E.INVALID_CONFIG]
    assert len(cluster.image.broker_configs[int(resource) if resource else None]) == 1000


def test_a_broker_configuration_has_a_limited_number_of_bytes(cluster):
    large = "é" * 15_000
    assert increment(cluster, (BROKER, "", undeclared(8, value=large))) == [0]
    assert increment(cluster, (BROKER, "", undeclared(1, 8, value=large))) == [E.INVALID_CONFIG]
    assert increment(cluster, (BROKER, "1", undeclared(8, value=large))) == [0]


def test_a_configuration_that_is_too_large_may_become_smaller(cluster):
    stored = {name: "x" * 30_000 for name, _, _ in undeclared(2000)}
    run_now(cluster.controller.put_broker_config(None, stored))
    assert increment(cluster, (BROKER, "", undeclared(1000, operation=DELETE, value=None))) == [0]
    assert increment(cluster, (BROKER, "", undeclared(1))) == [E.INVALID_CONFIG]
    assert len(cluster.image.broker_configs[None]) == 1000


class Stored(dict[str, str]):
    """A stored configuration that counts the iterations over it."""

    reads = 0

    def items(self):
        Stored.reads += 1
        return super().items()


def test_a_description_does_not_iterate_over_the_configuration_for_each_entry(cluster, monkeypatch):
    for key in (None, 1):
        cluster.image.put_broker_config(key, {name: "1" for name, _, _ in undeclared(500)})
        cluster.image.broker_configs[key] = Stored(cluster.image.broker_configs[key])
    cluster.image.publish()
    monkeypatch.setattr(Stored, "reads", 0)
    for resource in ("", "1"):
        assert len(list(describe(cluster, BROKER, resource).configs)) >= 500
    assert len(list(describe(cluster, TOPIC, "t").configs)) > 30
    create(cluster, new("u"))
    assert Stored.reads == 0


def test_replacing_resets_properties_that_are_not_named(cluster):
    assert replace(cluster, (TOPIC, "t", [("segment.ms", "5000")])) == [0]
    assert cluster.image.topic_configs == {"t": {"segment.ms": "5000"}}
    assert replace(cluster, (TOPIC, "t", [])) == [0]
    assert cluster.image.topic_configs == {}
    assert log_config(cluster) is cluster.configs.topic_defaults


def test_validate_only_changes_nothing(cluster):
    version = cluster.image.version
    assert increment(cluster, (TOPIC, "t", [("segment.ms", SET, "5000")]), validate_only=True) == [0]
    assert increment(cluster, (TOPIC, "t", [("segment.ms", SET, "x")]), validate_only=True) == [E.INVALID_CONFIG]
    assert replace(cluster, (BROKER, "1", [("message.max.bytes", "5000")]), validate_only=True) == [0]
    assert cluster.image.version == version


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "none", [("segment.ms", SET, "5000")], E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "none", [("segment.ms", SET, "x")], E.INVALID_CONFIG),
        (TOPIC, "", [("segment.ms", SET, "5000")], E.INVALID_REQUEST),
        (TOPIC, "a/b", [("segment.ms", SET, "5000")], E.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "t", [("segment.ms", SET, None)], E.INVALID_REQUEST),
        (TOPIC, "t", [("segment.ms", SET, "1"), ("segment.ms", SET, "2")], E.INVALID_REQUEST),
        (TOPIC, "t", [("segment.ms", 9, "1")], E.INVALID_REQUEST),
        (TOPIC, "t", [("segment.ms", APPEND, "1")], E.INVALID_CONFIG),
        (TOPIC, "t", [("no.such", SUBTRACT, "1")], E.INVALID_CONFIG),
        (TOPIC, "t", [("no.such", SET, "1")], E.INVALID_CONFIG),
        (TOPIC, "t", [("no.such", DELETE, None)], E.NONE),
        (TOPIC, "t", [("segment.ms", SET, "1"), ("segment.bytes", SET, "1")], E.INVALID_CONFIG),
        (TOPIC, "t", [("segment.ms", SET, "1" * 40000)], E.INVALID_CONFIG),
        (BROKER, "", [("metric.reporters", SET, "é" * 16384)], E.INVALID_CONFIG),
        (BROKER, "1", [("my.plugin.setting", SET, "é" * 16384)], E.INVALID_CONFIG),
        (BROKER, "2", [("message.max.bytes", SET, "1")], E.INVALID_REQUEST),
        (BROKER, "one", [("message.max.bytes", SET, "1")], E.INVALID_REQUEST),
        (BROKER, "1", [("num.partitions", SET, "1")], E.INVALID_REQUEST),
        (BROKER, "1", [("message.max.bytes", SET, "-1")], E.INVALID_REQUEST),
        (BROKER, "1", [("message.max.bytes", APPEND, "1")], E.INVALID_CONFIG),
        (BROKER, "", [("listeners", SET, "PLAINTEXT://:1")], E.INVALID_REQUEST),
        (BROKER, "1", [("listeners", SET, "PLAINTEXT://:1")], E.NONE),
        (BROKER, "1", [("my.plugin.setting", SET, "1")], E.NONE),
        (LOGGER, "2", [], E.INVALID_REQUEST),
        (CLIENT_METRICS, "m", [("interval.ms", SET, "1")], E.INVALID_CONFIG),
        (CLIENT_METRICS, "m", [("metrics", SET, "x" * 32768)], E.INVALID_CONFIG),
        (CLIENT_METRICS, "m", [("metrics", APPEND, "x")], E.INVALID_CONFIG),
        (CLIENT_METRICS, "m", [("metrics", 9, "x")], E.INVALID_REQUEST),
        (CLIENT_METRICS, "m", [("no.such", DELETE, None)], E.NONE),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], E.INVALID_REQUEST),
        (77, "g", [], E.INVALID_REQUEST),
    ],
)
def test_faults(cluster, kind, name, changes, code):
    before = cluster.image.contents()
    assert increment(cluster, (kind, name, changes)) == [code]
    if code:
        assert cluster.image.contents() == before
    assert cluster.client_metrics.configs == {}


def test_a_resource_named_twice_is_refused_both_times_and_others_are_changed(cluster):
    change = [("segment.ms", SET, "5000")]
    results = increment(cluster, (TOPIC, "t", change), (TOPIC, "t", change), (BROKER, "", []))
    assert results == [E.INVALID_REQUEST, E.INVALID_REQUEST, 0]
    assert replace(cluster, (TOPIC, "t", [("a", "1"), ("a", "1")])) == [E.INVALID_REQUEST]
    assert replace(cluster, (TOPIC, "t", [("a", None)])) == [E.INVALID_REQUEST]


def test_dynamic_broker_configurations_take_effect_in_their_order(cluster):
    seen = []
    cluster.configs.listeners.append(lambda old, new: seen.append(new.value("message.max.bytes")))

    def largest():
        return log_config(cluster).max_message_bytes

    assert increment(cluster, (BROKER, "", [("message.max.bytes", SET, "3000")])) == [0]
    assert largest() == 3000
    assert increment(cluster, (BROKER, "1", [("message.max.bytes", SET, "4000")])) == [0]
    assert largest() == 4000
    assert increment(cluster, (BROKER, "", [("message.max.bytes", SET, "5000")])) == [0]
    assert largest() == 4000
    assert increment(cluster, (TOPIC, "t", [("max.message.bytes", SET, "100")])) == [0]
    assert largest() == 100
    assert increment(cluster, (TOPIC, "t", [("max.message.bytes", DELETE, None)])) == [0]
    assert increment(cluster, (BROKER, "1", [("message.max.bytes", DELETE, None)])) == [0]
    assert largest() == 5000
    assert seen == [3000, 4000, 5000]


def test_a_dynamic_value_displaces_static_ones_in_other_units():
    cluster = Cluster(static={"log.retention.minutes": "2"})
    create(cluster, new("t"))
    assert log_config(cluster).retention_ms == 120_000
    assert increment(cluster, (BROKER, "", [("log.retention.ms", SET, "77")])) == [0]
    assert log_config(cluster).retention_ms == 77


def test_configurations_outlive_a_restart(cluster):
    increment(cluster, (BROKER, "", [("message.max.bytes", SET, "3000")]))
    increment(cluster, (BROKER, "1", [("log.segment.bytes", SET, "2000000")]))
    cluster.server.expire(cluster.store)
    restarted = Cluster(server=cluster.server)
    config = restarted.replicas.get("t", 0).log.config
    assert (config.max_message_bytes, config.segment_bytes, config.retention_ms) == (3000, 2000000, 1000)


def test_invalid_stored_values_are_ignored(cluster):
    run_now(cluster.controller.put_broker_config(1, {"message.max.bytes": "x", "log.segment.bytes": "2000000"}))
    run_now(cluster.controller.put_broker_config(None, {"num.partitions": "7", "listeners": "x"}))
    run_now(cluster.controller.put_topic_config("t", {"segment.ms": "x", "retention.ms": "8"}))
    assert log_config(cluster).segment_bytes == 2000000
    assert log_config(cluster).max_message_bytes == 1048588
    assert log_config(cluster).retention_ms == 8
    assert cluster.configs.current.value("num.partitions") == 1


def test_old_notices_of_changes_are_removed(cluster):
    for now_ms in (0, 1000, 15 * 60_000 + 500):
        cluster.now_ms = now_ms
        increment(cluster, (TOPIC, "t", [("segment.ms", SET, "5000")]))
    notices = run_now(cluster.store.get_children("/config/changes"))
    assert notices == ["config_change_0000000001", "config_change_0000000002"]


def test_a_change_removes_few_old_notices(cluster, monkeypatch):
    change, seen = [("segment.ms", SET, "5000")], []
    for _ in range(120):
        increment(cluster, (TOPIC, "t", change))
    cluster.now_ms += 16 * 60_000
    write = cluster.store.transaction

    async def transaction(operations):
        seen.append(operations)
        return await write(operations)

    monkeypatch.setattr(cluster.store, "transaction", transaction)
    for left in (71, 22, 3):
        increment(cluster, (TOPIC, "t", change))
        assert len(seen.pop()) <= 53
        assert len(run_now(cluster.store.get_children("/config/changes"))) == left


def test_a_store_that_is_not_shared_has_no_notices(cluster):
    cluster.store.is_shared = False
    assert increment(cluster, (TOPIC, "t", [("segment.ms", SET, "5000")])) == [0]
    assert increment(cluster, (BROKER, "", [("message.max.bytes", SET, "5000")])) == [0]
    assert run_now(cluster.store.get_children("/config/changes")) == []


def test_a_topic_is_described_with_sources_and_synonyms(cluster):
    increment(cluster, (BROKER, "", [("log.segment.bytes", SET, "2000000")]))
    increment(cluster, (BROKER, "1", [("log.segment.bytes", SET, "3000000")]))
    result = describe(cluster, TOPIC, "t")
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "t")
    names = [found.name for found in result.configs]
    assert len(names) == len(set(names)) > 30
    assert "internal.segment.bytes" not in names
    found = entry(cluster, TOPIC, "t", "segment.bytes")
    assert (found.value, found.config_source, found.read_only, found.is_sensitive) == ("3000000", 2, False, False)
    assert found.config_type == 3
    assert found.documentation
    assert [(s.name, s.value, s.source) for s in found.synonyms] == [
        ("log.segment.bytes", "3000000", 2),
        ("log.segment.bytes", "2000000", 3),
        ("log.segment.bytes", str(1 << 30), 5),
    ]
    found = entry(cluster, TOPIC, "t", "retention.ms")
    assert (found.value, found.config_source) == ("1000", 1)
    assert [(s.name, s.value, s.source) for s in found.synonyms] == [("retention.ms", "1000", 1)]
    found = entry(cluster, TOPIC, "t", "cleanup.policy")
    assert (found.value, found.config_source, found.config_type) == ("delete", 5, 7)


def test_keys_that_are_not_requested_are_left_out(cluster):
    [found] = describe(cluster, TOPIC, "t", ["segment.bytes"], synonyms=False, documentation=False).configs
    assert found.synonyms == []
    assert found.documentation is None
    assert describe(cluster, TOPIC, "t", ["no.such"]).configs == []
    assert len(describe(cluster, TOPIC, "t", []).configs) > 30


def test_this_broker_is_described():
    cluster = Cluster(static={"message.max.bytes": "4000", "ssl.key.password": "hunter2"})
    increment(cluster, (BROKER, "", [("log.cleanup.policy", SET, "compact")]))
    increment(cluster, (BROKER, "1", [("my.setting", SET, "private")]))
    found = entry(cluster, BROKER, "1", "message.max.bytes")
    assert (found.value, found.config_source, found.read_only) == ("4000", 4, False)
    assert [(s.value, s.source) for s in found.synonyms] == [("4000", 4), ("1048588", 5)]
    found = entry(cluster, BROKER, "1", "num.partitions")
    assert (found.value, found.config_source, found.read_only) == ("1", 5, True)
    found = entry(cluster, BROKER, "1", "log.cleanup.policy")
    assert (found.value, found.config_source) == ("compact", 3)
    found = entry(cluster, BROKER, "1", "ssl.key.password")
    assert (found.value, found.is_sensitive, found.synonyms[0].value) == (None, True, None)
    found = entry(cluster, BROKER, "1", "my.setting")
    assert (found.value, found.is_sensitive, found.config_source) == (None, True, 2)
    assert "hunter2" not in repr(describe(cluster, BROKER, "1"))


def test_the_cluster_wide_default_is_described_with_its_dynamic_values():
    cluster = Cluster(static={"message.max.bytes": "4000"})
    assert describe(cluster, BROKER, "").configs == []
    increment(cluster, (BROKER, "", [("message.max.bytes", SET, "5000")]))
    [found] = describe(cluster, BROKER, "").configs
    assert (found.name, found.value, found.config_source) == ("message.max.bytes", "5000", 3)
    assert [(s.value, s.source) for s in found.synonyms] == [("5000", 3)]


def test_a_resource_is_described_once_in_a_response(cluster):
    named = [(BROKER, "1"), (TOPIC, "t"), (BROKER, "+01"), (BROKER, ""), (TOPIC, "t"), (BROKER, "x"), (BROKER, "1")]
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequestDescribeConfigsResource(resource_type=kind, resource_name=name)
            for kind, name in named
        ]
    )
    encoded = codec.encode(cluster.describer.describe(request), 4)
    results = codec.decode(DescribeConfigsResponse, 4, encoded).results
    assert [(result.resource_type, result.resource_name) for result in results] == named
    repeated = E.INVALID_REQUEST
    assert [result.error_code for result in results] == [0, 0, repeated, 0, repeated, E.INVALID_REQUEST, repeated]
    assert [bool(result.configs) for result in results] == [True, True, False, False, False, False, False]
    assert results[2].error_message == "Each resource must appear at most once."


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "none", E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", E.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", E.INVALID_REQUEST),
        (BROKER, "x", E.INVALID_REQUEST),
        (GROUP, "g", E.INVALID_REQUEST),
        (CLIENT_METRICS, "", E.INVALID_REQUEST),
        (99, "x", E.INVALID_REQUEST),
    ],
)
def test_resources_that_cannot_be_described(cluster, kind, name, code):
    result = describe(cluster, kind, name)
    assert (result.error_code, result.resource_name, result.configs) == (code, name, [])


def test_a_subscription_of_client_metrics_is_changed_and_described(cluster):
    def described(name="m", keys=None):
        return [
            (one.name, one.value, one.config_source, one.read_only, [(s.name, s.value, s.source) for s in one.synonyms])
            for one in describe(cluster, CLIENT_METRICS, name, keys).configs
        ]

    defaults = [("interval.ms", "5", 5, False, []), ("metrics", "", 5, False, [])]
    assert described() == defaults
    assert increment(cluster, (CLIENT_METRICS, "m", [("metrics", SET, "a,b")]), validate_only=True) == [0]
    assert described() == defaults
    assert increment(cluster, (CLIENT_METRICS, "m", [("metrics", SET, "a,b"), ("interval.ms", SET, "9")])) == [0]
    assert increment(cluster, (CLIENT_METRICS, "m", [("interval.ms", DELETE, None)])) == [0]
    changed = ("metrics", "a,b", 7, False, [("metrics", "a,b", 7)])
    assert described() == [defaults[0], changed]
    assert described(keys=["metrics"]) == [changed]
    assert described("other") == defaults
    assert replace(cluster, (CLIENT_METRICS, "m", [("interval.ms", "8")])) == [0]
    assert cluster.client_metrics.configs == {"m": {"interval.ms": "8"}}
    assert replace(cluster, (CLIENT_METRICS, "m", [])) == [0]
    assert described() == defaults


def test_resources_are_listed(cluster):
    def listed(*kinds, version=1):
        request = ListConfigResourcesRequest(resource_types=list(kinds))
        response = cluster.config_admin.list_config_resources(request, version, ["g"])
        return response.error_code, [(r.resource_type, r.resource_name) for r in response.config_resources]

    assert increment(cluster, (CLIENT_METRICS, "m", [("interval.ms", SET, "3")])) == [0]
    everything = [(GROUP, "g"), (CLIENT_METRICS, "m"), (LOGGER, "1"), (BROKER, "1"), (TOPIC, "t")]
    assert listed() == (0, everything)
    assert listed(TOPIC) == (0, [(TOPIC, "t")])
    assert listed(version=0) == (0, [(CLIENT_METRICS, "m")])
    assert listed(3) == (E.UNSUPPORTED_VERSION, [])


def test_other_requests_are_served_between_resources():
    pauses = []

    async def pause():
        pauses.append(None)

    cluster = Cluster()
    cluster.controller.context.pause = pause
    create(cluster, new("t"), new("u"))
    pauses.clear()
    change = [("segment.bytes", SET, "2097152")]
    missing = [(TOPIC, f"none-{n}", change) for n in range(100)]
    assert increment(cluster, (TOPIC, "t", change), (TOPIC, "u", change)) == [E.NONE, E.NONE]
    assert len(pauses) == 2
    assert set(increment(cluster, *missing)) == {E.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(pauses) == 102


def test_a_member_whose_session_has_ended_lets_clients_repeat_the_change():
    """The change may have been made, or not."""
    cluster = Cluster()
    create(cluster, new("t"))
    follower: Any = SimpleNamespace()
    changes = MemberConfigChanges(cluster.store, cluster.image, follower, lambda: 0)
    cluster.server.expire(cluster.store)
    with pytest.raises(KafkaError) as caught:
        run_now(changes.put_topic_config("t", {"segment.bytes": "2097152"}))
    assert caught.value.code == E.REQUEST_TIMED_OUT
