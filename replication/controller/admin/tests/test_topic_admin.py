"""Each invalid topic request gets the error that Apache Kafka 4.3 returns."""

from itertools import pairwise

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsAssignment,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableReplicaAssignment,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.replication.controller.admin.log_capacity import LogCapacity
from odradek.replication.controller.topics.ids import random_topic_id
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.tests.support import Cluster, log_keys

E = ErrorCode


def new(name, partitions=1, factor=1, configs=None, assignments=()):
    return CreateTopicsRequestCreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[
            CreateTopicsRequestCreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()
        ],
        assignments=[
            CreateTopicsRequestCreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in assignments
        ],
    )


def create(cluster, *topics, validate_only=False):
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return run_now(cluster.topics.create_topics(request)).topics


def error_of(cluster, *args, **kwargs):
    [result] = create(cluster, new(*args, **kwargs))
    return result.error_code


def test_a_created_topic_is_in_the_image_and_its_logs_are_there():
    cluster = Cluster()
    [result] = create(cluster, new("orders", 3, configs={"retention.ms": "1000"}))
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    topic = cluster.image.topics["orders"]
    assert topic.topic_id == result.topic_id
    assert cluster.image.topics_by_id[topic.topic_id] is topic
    assert [(p.leader, p.leader_epoch, p.isr, p.replicas) for p in topic.partitions] == [(1, 0, (1,), (1,))] * 3
    assert log_keys(cluster) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert cluster.replicas.get("orders", 2).log.config.retention_ms == 1000
    assert cluster.replicas.get_by_id(topic.topic_id, 1) is cluster.replicas.get("orders", 1)
    in_force = {entry.name: entry for entry in result.configs}
    assert (in_force["retention.ms"].value, in_force["retention.ms"].config_source) == ("1000", 1)
    assert (in_force["segment.bytes"].value, in_force["segment.bytes"].config_source) == (str(1 << 30), 5)
    assert "internal.segment.bytes" not in in_force


def test_defaults_come_from_the_broker():
    cluster = Cluster(static={"num.partitions": "4", "default.replication.factor": "2"}, others=[2])
    [result] = create(cluster, new("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 2)


def put_racks(cluster, **racks):
    """Give the brokers `b1`, `b2`, ... these racks."""
    image = cluster.controller.image
    for name, rack in racks.items():
        image.put_broker(image.brokers[int(name[1:])]._replace(rack=rack))


def test_replicas_are_distributed_over_racks():
    cluster = Cluster(others=[2, 3, 4])
    put_racks(cluster, b1="a", b2="a", b3="b", b4="b")
    create(cluster, new("t", 8, 2))
    assert not [p for p in cluster.image.topics["t"].partitions if {*p.replicas} in ({1, 2}, {3, 4})]
    assert grow(cluster, ("t", 16)) == {"t": 0}
    added = cluster.image.topics["t"].partitions[8:]
    assert len(added) == 8
    assert not [p for p in added if {*p.replicas} in ({1, 2}, {3, 4})]


def test_racks_of_some_brokers_only():
    cluster = Cluster(others=[2])
    create(cluster, new("t"))
    put_racks(cluster, b1="a")
    [result] = create(cluster, new("u", 2, 2))
    assert result.error_code == E.UNKNOWN_SERVER_ERROR
    assert "Not all brokers have rack information" in result.error_message
    assert run_now(cluster.topics.auto_create(["u"]))["u"].code == E.UNKNOWN_SERVER_ERROR
    assert grow(cluster, ("t", 2)) == {"t": E.UNKNOWN_SERVER_ERROR}


def test_validate_only_creates_nothing():
    cluster = Cluster()
    version = cluster.image.version
    [good, bad] = create(cluster, new("t", 2), new("a/b"), validate_only=True)
    assert (good.error_code, good.num_partitions) == (0, 2)
    assert bad.error_code == E.INVALID_TOPIC_EXCEPTION
    assert cluster.image.topics == {}
    assert cluster.image.version == version


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", E.INVALID_TOPIC_EXCEPTION),
        (".", E.INVALID_TOPIC_EXCEPTION),
        ("..", E.INVALID_TOPIC_EXCEPTION),
        ("a" * 250, E.INVALID_TOPIC_EXCEPTION),
        ("a b", E.INVALID_TOPIC_EXCEPTION),
        ("naïve", E.INVALID_TOPIC_EXCEPTION),
        ("a" * 249, E.NONE),
        ("A.b_c-0", E.NONE),
        ("taken", E.TOPIC_ALREADY_EXISTS),
        ("with_dot", E.INVALID_TOPIC_EXCEPTION),
        ("with.dot", E.TOPIC_ALREADY_EXISTS),
        ("__cluster_metadata", E.INVALID_REQUEST),
    ],
)
def test_names(name, code):
    cluster = Cluster()
    create(cluster, new("taken"), new("with.dot"))
    assert error_of(cluster, name) == code


@pytest.mark.parametrize(
    ("keywords", "code"),
    [
        ({"partitions": 0}, E.INVALID_PARTITIONS),
        ({"partitions": -2}, E.INVALID_PARTITIONS),
        ({"factor": 0}, E.INVALID_REPLICATION_FACTOR),
        ({"factor": -2, "partitions": 0}, E.INVALID_REPLICATION_FACTOR),
        ({"factor": 3}, E.INVALID_REPLICATION_FACTOR),
        ({"partitions": 10_001}, E.POLICY_VIOLATION),
        ({"configs": {"no.such": "1"}}, E.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, E.INVALID_CONFIG),
        ({"configs": {"retention.ms": None}}, E.INVALID_CONFIG),
        ({"configs": {"cleanup.policy": "burn"}, "partitions": 0}, E.INVALID_CONFIG),
        ({"configs": {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}}, E.INVALID_CONFIG),
    ],
)
def test_numbers_and_configurations(keywords, code):
    cluster = Cluster(others=[2])
    assert error_of(cluster, "t", **keywords) == code
    assert cluster.image.topics == {}


@pytest.mark.parametrize(
    ("assignments", "keywords", "code"),
    [
        ([(0, [1, 2]), (1, [2, 1])], {}, E.NONE),
        ([(0, [1])], {"factor": 1}, E.INVALID_REQUEST),
        ([(0, [1])], {"partitions": 1}, E.INVALID_REQUEST),
        ([(0, [1]), (0, [2])], {}, E.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [])], {}, E.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 1])], {}, E.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [7])], {}, E.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 2]), (1, [1])], {}, E.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1]), (2, [1])], {}, E.INVALID_REPLICA_ASSIGNMENT),
        ([(1, [1]), (2, [1])], {}, E.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_manual_assignment(assignments, keywords, code):
    cluster = Cluster(others=[2])
    arguments = {"partitions": -1, "factor": -1, **keywords}
    assert error_of(cluster, "t", assignments=assignments, **arguments) == code
    if code == E.NONE:
        partitions = cluster.image.topics["t"].partitions
        assert [(p.leader, p.replicas) for p in partitions] == [(1, (1, 2)), (2, (2, 1))]


def test_duplicates_in_a_request_are_refused_once_and_the_rest_is_done():
    cluster = Cluster()
    results = create(cluster, new("twice"), new("once"), new("twice"))
    assert [(r.name, r.error_code) for r in results] == [("once", 0), ("twice", E.INVALID_REQUEST)]
    assert list(cluster.image.topics) == ["once"]


def test_a_broker_that_is_not_the_controller_refuses():
    cluster = Cluster()
    cluster.controller.context.resign("a test")
    with pytest.raises(KafkaError) as error:
        create(cluster, new("t"))
    assert error.value.code == E.NOT_CONTROLLER


def test_auto_creation():
    cluster = Cluster(static={"num.partitions": "2"})
    errors = run_now(cluster.topics.auto_create(["t", "a/b", "__consumer_offsets", "__transaction_state"]))
    assert {name: error and error.code for name, error in errors.items()} == {
        "t": None,
        "a/b": E.INVALID_TOPIC_EXCEPTION,
        "__consumer_offsets": None,
        "__transaction_state": None,
    }
    assert len(cluster.image.topics["t"].partitions) == 2
    assert len(cluster.image.topics["__consumer_offsets"].partitions) == 50
    assert cluster.image.topics["__consumer_offsets"].is_internal
    assert cluster.image.topic_configs["__consumer_offsets"]["cleanup.policy"] == "compact"


def test_a_given_replication_factor_of_internal_topics_holds():
    cluster = Cluster(static={"offsets.topic.replication.factor": "3"})
    [error] = run_now(cluster.topics.auto_create(["__consumer_offsets"])).values()
    assert error.code == E.INVALID_REPLICATION_FACTOR


def test_a_large_request_is_written_in_several_transactions(monkeypatch):
    monkeypatch.setattr("odradek.replication.controller.topics.changes.MAX_OPERATIONS", 20)
    cluster = Cluster()
    before = run_now(cluster.store.exists("/brokers/ids/1")).created_id
    results = create(cluster, *(new(f"t{number}", 3) for number in range(5)), new("large", 12))
    assert {result.error_code for result in results} == {0}
    created = {run_now(cluster.store.exists(f"/brokers/topics/{t}")).created_id for t in cluster.image.topics}
    assert len(created) == 4
    assert min(created) > before


def test_a_full_store_is_reported_and_topics_written_before_exist(monkeypatch):
    monkeypatch.setattr("odradek.replication.controller.topics.changes.MAX_OPERATIONS", 20)
    cluster = Cluster()
    write, calls = cluster.store.transaction, []

    async def refuse_the_second(operations):
        calls.append(operations)
        if len(calls) == 2:
            raise StoreUnavailableError("database or disk is full")
        return await write(operations)

    monkeypatch.setattr(cluster.store, "transaction", refuse_the_second)
    results = create(cluster, new("first", 8), new("second", 8))
    assert [result.error_code for result in results] == [E.NONE, E.KAFKA_STORAGE_ERROR]
    assert set(cluster.image.topics) == {"first"}
    assert error_of(cluster, "second", 8) == E.NONE


def test_a_topic_that_appeared_meanwhile_fails_alone():
    cluster = Cluster()
    run_now(cluster.store.create("/brokers/topics/b", b"{}"))
    results = create(cluster, new("a"), new("b"), new("c"))
    assert [result.error_code for result in results] == [0, E.TOPIC_ALREADY_EXISTS, 0]
    assert sorted(cluster.image.topics) == ["a", "c"]


def grow(cluster, *topics, validate_only=False):
    asked = [
        CreatePartitionsRequestCreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if not rest
            else [CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=list(b)) for b in rest[0]],
        )
        for name, count, *rest in topics
    ]
    request = CreatePartitionsRequest(topics=asked, validate_only=validate_only)
    return {r.name: r.error_code for r in run_now(cluster.topics.create_partitions(request)).results}


def test_partitions_can_be_added():
    cluster = Cluster()
    create(cluster, new("t", 2))
    before = cluster.image.topics["t"]
    assert grow(cluster, ("t", 5), validate_only=True) == {"t": 0}
    assert cluster.image.topics["t"] is before
    assert grow(cluster, ("t", 5)) == {"t": 0}
    after = cluster.image.topics["t"]
    assert after.partitions[:2] == before.partitions
    assert len(after.partitions) == 5
    assert cluster.replicas.get("t", 4).is_leader


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (("none", 5), E.UNKNOWN_TOPIC_OR_PARTITION),
        (("t", 2), E.INVALID_PARTITIONS),
        (("t", 1), E.INVALID_PARTITIONS),
        (("t", -1), E.INVALID_PARTITIONS),
        (("t", 3, []), E.INVALID_REPLICA_ASSIGNMENT),
        (("t", 3, [[1], [1]]), E.INVALID_REPLICA_ASSIGNMENT),
        (("t", 3, [[]]), E.INVALID_REPLICA_ASSIGNMENT),
        (("t", 3, [[9]]), E.INVALID_REPLICA_ASSIGNMENT),
        (("t", 3, [[1, 2]]), E.INVALID_REPLICA_ASSIGNMENT),
        (("t", 3, [[2]]), E.NONE),
        (("t", 20_000), E.POLICY_VIOLATION),
    ],
)
def test_faults_of_added_partitions(topic, code):
    cluster = Cluster(others=[2])
    create(cluster, new("t", 2))
    if topic[2:] == ([],):
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsRequestCreatePartitionsTopic(name="t", count=3, assignments=[])]
        )
        assert run_now(cluster.topics.create_partitions(request)).results[0].error_code == code
    else:
        assert grow(cluster, topic) == {topic[0]: code}


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
@pytest.mark.parametrize("validate_only", [False, True])
def test_an_internal_topic_keeps_its_number_of_partitions(name, validate_only):
    cluster = Cluster(static={"offsets.topic.num.partitions": "3"})
    assert run_now(cluster.topics.auto_create([name])) == {name: None}
    before = cluster.image.topics[name]
    more = len(before.partitions) + 1
    assert grow(cluster, (name, more), validate_only=validate_only) == {name: E.POLICY_VIOLATION}
    assert grow(cluster, (name, more, [[1]]), validate_only=validate_only) == {name: E.POLICY_VIOLATION}
    assert cluster.image.topics[name] is before


def test_a_changed_property_leaves_the_partitions_of_an_internal_topic_alone():
    cluster = Cluster(static={"offsets.topic.num.partitions": "3"})
    run_now(cluster.topics.auto_create(["__consumer_offsets"]))
    cluster.server.expire(cluster.store)
    restarted = Cluster(server=cluster.server, logs=cluster.logs, static={"offsets.topic.num.partitions": "5"})
    [error] = run_now(restarted.topics.auto_create(["__consumer_offsets"])).values()
    assert error.code == E.TOPIC_ALREADY_EXISTS
    assert len(restarted.image.topics["__consumer_offsets"].partitions) == 3


def test_a_topic_named_twice_is_not_grown():
    cluster = Cluster()
    create(cluster, new("t"))
    assert grow(cluster, ("t", 2), ("t", 3)) == {"t": E.INVALID_REQUEST}
    assert len(cluster.image.topics["t"].partitions) == 1


def delete(cluster, *, names=(), topics=(), version=6):
    request = DeleteTopicsRequest(
        topic_names=list(names),
        topics=[DeleteTopicsRequestDeleteTopicState(name=name, topic_id=i) for name, i in topics],
    )
    response = run_now(cluster.topics.delete_topics(request, version))
    return sorted((r.name or "", r.topic_id, r.error_code) for r in response.responses)


def test_topics_are_deleted_by_name_and_by_id():
    cluster = Cluster()
    create(cluster, *(new(name, 2, configs={"retention.ms": "5"}) for name in "abcd"))
    ids = {name: cluster.image.topics[name].topic_id for name in "abcd"}
    held = cluster.replicas.get("a", 0)
    assert delete(cluster, names=["a"], version=5) == [("a", ids["a"], 0)]
    assert delete(cluster, topics=[("b", bytes(16)), (None, ids["c"])]) == [("b", ids["b"], 0), ("c", ids["c"], 0)]
    assert list(cluster.image.topics) == ["d"]
    assert list(cluster.image.topics_by_id) == [ids["d"]]
    assert list(cluster.image.topic_configs) == ["d"]
    assert log_keys(cluster) == [("d", 0), ("d", 1)]
    assert len(cluster.replicas.partitions) == len(cluster.replicas.partitions_by_id) == 2
    assert not held.is_leader
    assert run_now(cluster.store.get_children("/brokers/topics")) == ["d"]
    assert run_now(cluster.store.get_children("/config/topics")) == ["d"]
    assert run_now(cluster.store.get_children("/admin/delete_topics")) == []
    assert error_of(cluster, "a") == 0
    assert cluster.image.topics["a"].topic_id != ids["a"]


def test_a_topic_that_another_request_replaces_meanwhile_is_not_deleted():
    cluster = Cluster()
    create(cluster, new("a"), new("b"))
    old_id = cluster.image.topics["a"].topic_id
    pauses = 0

    async def pause():
        nonlocal pauses
        pauses += 1
        if pauses == 2:
            # The first topic of the request has been looked up.
            delete(cluster, names=["a"], version=5)
            create(cluster, new("a"))

    cluster.controller.context.pause = pause
    found = delete(cluster, topics=[("a", bytes(16)), ("b", bytes(16))])
    assert [(name, code) for name, _, code in found] == [("a", E.UNKNOWN_TOPIC_OR_PARTITION), ("b", 0)]
    assert list(cluster.image.topics) == ["a"]
    assert cluster.image.topics["a"].topic_id != old_id


def test_faults_of_a_deletion():
    cluster = Cluster()
    create(cluster, *(new(name) for name in "abcd"))
    ids = {name: cluster.image.topics[name].topic_id for name in "abcd"}
    none, stray = bytes(16), b"\x01" * 16
    results = delete(
        cluster,
        names=["nope", "twice", "twice"],
        topics=[
            (None, none),
            (None, stray),
            ("a", ids["a"]),
            (None, ids["b"]),
            (None, ids["b"]),
            ("c", none),
            (None, ids["c"]),
        ],
    )
    assert results == sorted(
        [
            ("nope", none, E.UNKNOWN_TOPIC_OR_PARTITION),
            ("twice", none, E.INVALID_REQUEST),
            ("", none, E.INVALID_REQUEST),
            ("", stray, E.UNKNOWN_TOPIC_ID),
            ("a", ids["a"], E.INVALID_REQUEST),
            ("", ids["b"], E.INVALID_REQUEST),
            ("c", ids["c"], E.INVALID_REQUEST),
        ]
    )
    assert sorted(cluster.image.topics) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("version", "code"), [(2, E.INVALID_REQUEST), (3, E.TOPIC_DELETION_DISABLED)])
def test_deletion_may_be_disabled(version, code):
    cluster = Cluster(static={"delete.topic.enable": "false"})
    with pytest.raises(KafkaError) as error:
        delete(cluster, names=["a"], version=version)
    assert error.value.code == code


def test_an_interrupted_deletion_is_finished_by_the_next_controller():
    cluster = Cluster()
    create(cluster, new("t", 2), new("kept"))
    run_now(cluster.store.create("/admin/delete_topics/t"))
    cluster.server.expire(cluster.store)
    restarted = Cluster(server=cluster.server, logs=cluster.logs)
    assert list(restarted.image.topics) == ["kept"]
    assert log_keys(restarted) == [("kept", 0)]
    assert run_now(restarted.store.get_children("/admin/delete_topics")) == []


def test_a_deletion_interrupted_at_any_write_leaves_the_topic_or_finishes():
    for allowed in range(3):
        cluster = Cluster()
        create(cluster, new("t", 2))
        write, calls = cluster.controller.context.write, []

        async def fail_later(operations, write=write, calls=calls, allowed=allowed):
            if len(calls) == allowed:
                raise KafkaError(E.NOT_CONTROLLER)
            calls.append(operations)
            return await write(operations)

        cluster.controller.context.write = fail_later
        [(_, _, code)] = delete(cluster, names=["t"])
        assert code == (E.NOT_CONTROLLER if allowed == 0 else E.NONE)
        cluster.server.expire(cluster.store)
        restarted = Cluster(server=cluster.server, logs=cluster.logs)
        assert list(restarted.image.topics) == (["t"] if allowed == 0 else [])
        assert len(log_keys(restarted)) == (2 if allowed == 0 else 0)


def test_topic_ids_print_without_a_leading_dash():
    class Dashes:
        def __init__(self):
            self.left = [(1 << 128) - 1, 0xFB << 120, 0]

        def getrandbits(self, bits):
            return self.left.pop(0)

        def randrange(self, stop):
            raise NotImplementedError

        def shuffle(self, items):
            raise NotImplementedError

    assert random_topic_id(Dashes()) == bytes.fromhex("ffffffffffff4fffbfffffffffffffff")
    dashes = Dashes()
    dashes.left.pop(0)
    assert random_topic_id(dashes)[0] == 0
    assert dashes.left == []


def test_the_store_has_what_the_image_has():
    cluster = Cluster()
    create(cluster, new("t", 3, configs={"retention.ms": "5"}), new("u"))
    grow(cluster, ("u", 2))
    delete(cluster, names=["t"])
    loaded = ClusterMetadata()
    run_now(load_image(cluster.store, loaded))
    assert loaded.contents() == cluster.image.contents()


def warnings(caplog):
    found = [record for record in caplog.records if record.levelname == "WARNING"]
    return [record for record in found if record.name.endswith("admin.topics")]


@pytest.mark.parametrize(("count", "partitions"), [(10_001, "1"), (101, "100")])
def test_more_topics_than_a_request_may_create_are_refused_with_one_line(caplog, monkeypatch, count, partitions):
    cluster = Cluster(static={"num.partitions": partitions})
    planned = []
    monkeypatch.setattr(cluster.topics, "_plan", planned.append)
    assert run_now(cluster.topics.auto_create([f"t{number}" for number in range(count)])) == {}
    [warning] = warnings(caplog)
    assert f"count={count}" in warning.getMessage()
    assert planned == []


def test_topics_that_cannot_be_created_share_one_line_and_let_others_work(caplog):
    cluster = Cluster()
    cluster.topics._capacity = LogCapacity(1, lambda: 0)
    pauses = []

    async def pause():
        pauses.append(None)

    cluster.controller.context.pause = pause
    errors = run_now(cluster.topics.auto_create([f"t{number}" for number in range(300)]))
    assert {error.code for error in errors.values()} == {E.POLICY_VIOLATION}
    [warning] = warnings(caplog)
    assert "count=300" in warning.getMessage()
    assert len(pauses) >= 600


def watch_steps(cluster, monkeypatch):
    """Record "write" for each transaction and "pause" for each pause."""
    steps, write = [], cluster.store.transaction

    async def transaction(operations):
        steps.append("write")
        return await write(operations)

    async def pause():
        steps.append("pause")

    monkeypatch.setattr(cluster.store, "transaction", transaction)
    cluster.controller.context.pause = pause
    return steps


def assert_few_writes(steps, count):
    assert steps.count("write") <= count
    assert ("write", "write") not in pairwise(steps)


def test_one_topic_that_is_marked_already_costs_few_transactions(monkeypatch):
    cluster = Cluster()
    names = [f"t{number}" for number in range(64)]
    create(cluster, *(new(name) for name in names))
    run_now(cluster.store.create("/admin/delete_topics/t40"))
    steps = watch_steps(cluster, monkeypatch)
    ids = {name: cluster.controller.image.topics[name].topic_id for name in names}
    assert run_now(cluster.controller.deletion.delete(names, ids)) == {}
    assert_few_writes(steps, 13)
    assert cluster.image.topics == {}


def test_one_topic_that_exists_already_costs_few_transactions(monkeypatch):
    cluster = Cluster()
    run_now(cluster.store.create("/brokers/topics/t40", b"{}"))
    steps = watch_steps(cluster, monkeypatch)
    results = create(cluster, *(new(f"t{number}") for number in range(64)))
    assert [result.error_code for result in results] == [E.TOPIC_ALREADY_EXISTS * (n == 40) for n in range(64)]
    assert_few_writes(steps, 13)
