"""Brokers that share a store: watches, takeover of the controller's role, and expired sessions."""

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.controller.topics import changes
from odradek.replication.metadata import loader, znodes
from odradek.replication.metadata.image import ClusterMetadata, PartitionMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import Create, StoreUnavailableError, run_now
from odradek.replication.tests.support import Cluster, Step, SteppedExecutor


@pytest.fixture
def server():
    return MemoryMetadataServer()


@pytest.fixture
def two(server):
    return Cluster(server=server, broker_id=1), Cluster(server=server, broker_id=2)


def stored(cluster):
    image = ClusterMetadata()
    run_now(load_image(cluster.store, image))
    return image.contents()


def leaders(cluster, topic):
    return [(p.leader, p.leader_epoch, p.isr) for p in cluster.image.topics[topic].partitions]


def roles(*clusters):
    return [cluster.controller.is_active for cluster in clusters]


def test_the_controller_follows_brokers_that_come_and_go(server):
    first = Cluster(server=server, broker_id=1)
    second = Cluster(server=server, broker_id=2)
    assert sorted(first.image.brokers) == [1, 2]
    create(first, new("t", -1, -1, assignments=[(0, [2, 1]), (1, [1, 2])]), new("s", -1, -1, assignments=[(0, [2])]))
    assert leaders(first, "t") + leaders(first, "s") == [(2, 0, (2, 1)), (1, 0, (1, 2)), (2, 0, (2,))]
    server.expire(second.store)
    assert sorted(first.image.brokers) == [1]
    assert leaders(first, "t") + leaders(first, "s") == [(1, 1, (1,)), (1, 0, (1, 2)), (-1, 1, (2,))]
    Cluster(server=server, broker_id=2)
    assert leaders(first, "t") + leaders(first, "s") == [(1, 1, (1,)), (1, 0, (1, 2)), (2, 2, (2,))]
    assert first.image.contents() == stored(first)


def test_a_standing_broker_takes_over_when_the_controllers_session_expires(server, two):
    first, second = two
    create(first, new("t", -1, -1, assignments=[(0, [1, 2]), (1, [2, 1])], configs={"flush.ms": "5"}))
    create(first, new("s", -1, -1, assignments=[(0, [1])]))
    server.expire(first.store)
    assert roles(first, second) == [False, True]
    assert (second.image.controller_id, second.image.controller_epoch) == (2, 2)
    assert sorted(second.image.brokers) == [2]
    assert leaders(second, "t") + leaders(second, "s") == [(2, 1, (2,)), (2, 0, (2, 1)), (-1, 1, (1,))]
    assert second.image.topic_configs["t"] == {"flush.ms": "5"}
    assert second.image.contents() == second.controller.image.contents() == stored(second)
    [created] = create(second, new("v"))
    assert created.error_code == ErrorCode.NONE
    with pytest.raises(KafkaError) as refused:
        create(first, new("w"))
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    assert second.image.contents() == stored(second)


def test_a_standing_broker_takes_over_when_the_controller_leaves(two):
    first, second = two
    run_now(first.controller.close())
    assert roles(first, second) == [False, True]
    assert second.controller.epoch == 2
    assert sorted(second.image.brokers) == [2]


def test_an_operator_who_deletes_the_controllers_node_has_it_elected_again(two):
    first, second = two
    run_now(second.store.delete(znodes.CONTROLLER))
    assert sorted(roles(first, second)) == [False, True]
    assert max(first.controller.epoch, second.controller.epoch) == 2
    active = next(cluster for cluster in two if cluster.controller.is_active)
    for cluster in two:
        assert (cluster.image.controller_id, cluster.image.controller_epoch) == (active.controller.broker_id, 2)
    [created] = create(active, new("t"))
    assert created.error_code == ErrorCode.NONE


def test_the_new_controller_finishes_the_deletions_of_the_last_one(server, two):
    first, second = two
    create(first, new("t", -1, -1, assignments=[(0, [1, 2])]))
    run_now(second.store.create(znodes.deletion_path("t")))
    server.expire(first.store)
    assert second.image.topics == {}
    assert run_now(second.store.get_children(znodes.TOPICS)) == []
    assert run_now(second.store.get_children(znodes.DELETE_TOPICS)) == []


def test_an_expired_session_registers_again_and_then_has_the_controller_elected(server):
    cluster = Cluster(server=server)
    create(cluster, new("t"))
    epoch = cluster.image.brokers[1].epoch
    server.expire(cluster.store)
    assert roles(cluster) == [False]
    order, transaction = [], cluster.store.transaction

    async def recorded(operations):
        order.append(operations[0].path)
        return await transaction(operations)

    cluster.store.transaction = recorded
    run_now(cluster.controller.rejoin())
    assert order[:2] == [znodes.broker_path(1), znodes.CONTROLLER]
    assert roles(cluster) == [True]
    assert cluster.controller.epoch == 2
    assert cluster.image.brokers[1].epoch > epoch
    assert cluster.image.contents() == stored(cluster)
    [created] = create(cluster, new("u"))
    assert created.error_code == ErrorCode.NONE


def test_a_broker_whose_session_expired_returns_as_a_standby(server, two):
    first, second = two
    create(first, new("t", -1, -1, assignments=[(0, [1])]))
    server.expire(first.store)
    assert leaders(second, "t") == [(-1, 1, (1,))]
    run_now(first.controller.rejoin())
    assert roles(first, second) == [False, True]
    assert sorted(second.image.brokers) == [1, 2]
    assert leaders(second, "t") == [(1, 2, (1,))]
    assert (first.image.controller_id, first.image.controller_epoch) == (2, 2)
    server.expire(second.store)
    assert roles(first, second) == [True, False]
    assert first.controller.epoch == 3
    assert first.image.contents() == stored(first)


def test_requests_that_wait_when_the_session_expires_are_refused(server):
    cluster = Cluster(server=server)
    executor = SteppedExecutor()
    cluster.controller.run_on(executor)
    transaction = cluster.store.transaction

    async def begin_late(operations):
        await Step()
        return await transaction(operations)

    cluster.store.transaction = begin_late
    changes = [
        executor.start(cluster.controller.put_broker_config(None, {"log.retention.ms": str(number)}))
        for number in range(3)
    ]
    server.expire(cluster.store)
    executor.finish()
    for change in changes[1:]:
        with pytest.raises(KafkaError) as refused:
            change.outcome()
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
    with pytest.raises(KafkaError):
        changes[0].outcome()
    assert cluster.image.broker_configs == {}


def test_a_new_session_replaces_a_registration_that_the_last_one_left(server):
    cluster = Cluster(server=server)
    broker = cluster.image.brokers[1]
    # The store has not yet expired the session of the crashed client.
    cluster.store._is_over = True
    run_now(cluster.controller.rejoin())
    stat = run_now(cluster.store.exists(znodes.broker_path(1)))
    assert stat.ephemeral_owner == cluster.store.session_id
    assert cluster.image.brokers[1].epoch > broker.epoch


def test_a_configuration_that_another_broker_wrote_is_followed_by_all(two):
    first, second = two
    create(first, new("t"))
    server_side = second.store
    run_now(server_side.set("/config/topics/t", znodes.encode_config({"retention.ms": "7"})))
    run_now(server_side.create("/config/brokers/<default>", znodes.encode_config({"log.retention.ms": "9"})))
    for path in ("topics/t", "brokers/<default>"):
        notice = znodes.encode_config_change(path)
        run_now(server_side.create("/config/changes/config_change_", notice, sequential=True))
    assert first.image.topic_configs == {"t": {"retention.ms": "7"}}
    assert [one.image.broker_configs for one in two] == [{None: {"log.retention.ms": "9"}}] * 2
    assert first.configs.current.log_retention_ms == second.configs.current.log_retention_ms == 9


def test_a_topic_that_another_broker_created_gets_leaders(two):
    first, second = two
    partitions = create_partitions(2)
    operations = [
        Create("/config/topics/t", znodes.encode_config({"flush.ms": "5"})),
        Create("/brokers/topics/t", znodes.encode_topic(bytes(range(16)), partitions)),
    ]
    run_now(second.store.transaction(operations))
    assert leaders(first, "t") == [(1, 0, (1,)), (1, 0, (1,))]
    assert first.image.topic_configs == {"t": {"flush.ms": "5"}}
    assert first.image.contents() == stored(first)


def create_partitions(count):
    return tuple(PartitionMetadata(-1, 0, (1,), ()) for _ in range(count))


def test_a_controller_that_resigned_reads_nothing_more_for_its_watches(server, two):
    run_now(two[1].store.delete(znodes.CONTROLLER))
    standby = next(cluster for cluster in two if not cluster.controller.is_active)
    before = standby.image.version
    active = next(cluster for cluster in two if cluster.controller.is_active)
    create(active, new("t"))
    assert standby.image.version == before


class Connection:
    """A connection to the store that is lost when the next claim of the controller's role has been made."""

    def __init__(self, cluster, monkeypatch):
        self.is_lost = False
        self._write, self._exists = cluster.store.transaction, cluster.store.exists
        monkeypatch.setattr(cluster.store, "transaction", self.transaction)
        monkeypatch.setattr(cluster.store, "exists", self.exists)

    async def transaction(self, operations):
        results = await self._write(operations)
        if any(operation.path == znodes.CONTROLLER for operation in operations):
            self.is_lost = True
        self._check()
        return results

    async def exists(self, *arguments):
        self._check()
        return await self._exists(*arguments)

    def _check(self):
        if self.is_lost:
            raise StoreUnavailableError("the connection was lost")


def test_a_claim_with_an_unknown_outcome_is_completed_when_the_store_can_be_read(two, monkeypatch):
    first, second = two
    create(first, new("t", -1, -1, assignments=[(0, [1, 2])]))
    connection = Connection(second, monkeypatch)
    run_now(first.controller.close())
    assert roles(first, second) == [False, False]
    connection.is_lost = False
    run_now(second.controller.reload())
    assert roles(first, second) == [False, True]
    assert second.controller.epoch == second.image.controller_epoch == 2
    assert leaders(second, "t") == [(2, 1, (2,))]
    [created] = create(second, new("u"))
    assert created.error_code == ErrorCode.NONE
    assert second.image.contents() == stored(second)


def test_a_claim_with_an_unknown_outcome_in_a_new_session(server, monkeypatch):
    cluster = Cluster(server=server)
    server.expire(cluster.store)
    connection = Connection(cluster, monkeypatch)
    with pytest.raises(StoreUnavailableError):
        run_now(cluster.controller.rejoin())
    assert roles(cluster) == [False]
    connection.is_lost = False
    run_now(cluster.controller.rejoin())
    assert roles(cluster) == [True]
    [created] = create(cluster, new("t"))
    assert created.error_code == ErrorCode.NONE


def test_a_stopped_broker_completes_no_claim(two, monkeypatch):
    first, second = two
    connection = Connection(second, monkeypatch)
    run_now(first.controller.close())
    second.controller.context.stop()
    connection.is_lost = False
    run_now(second.controller.reload())
    assert roles(first, second) == [False, False]


def test_a_reload_lets_other_work_run(monkeypatch):
    cluster = Cluster(static={"num.partitions": "400"})
    create(cluster, new("large", -1), *(new(f"t{number}", 1) for number in range(100)))
    counts, decode = [0], loader.decode_node

    def counted(*arguments):
        counts[-1] += 1
        return decode(*arguments)

    async def pause():
        counts.append(0)

    monkeypatch.setattr(loader, "decode_node", counted)
    cluster.controller.context.pause = pause
    run_now(cluster.controller.reload())
    assert sum(counts) > 600
    assert max(counts) <= 20
    assert cluster.image.contents() == stored(cluster)


class Steps:
    """Counts calls of a function between two pauses of a controller."""

    def __init__(self, cluster, monkeypatch, *functions):
        self.counts = [0]
        cluster.controller.context.pause = self.pause
        for module, name in functions:
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    async def pause(self):
        self.counts.append(0)

    def _counted(self, function):
        def counted(*arguments, **keywords):
            self.counts[-1] += 1
            return function(*arguments, **keywords)

        return counted


def test_leaders_of_many_partitions_are_elected_in_steps(server, two, monkeypatch):
    first, second = two
    create(first, new("t", -1, -1, assignments=[(index, [2, 1]) for index in range(1200)]))
    create(first, *(new(f"s{number}", -1, -1, assignments=[(0, [2, 1])]) for number in range(50)))
    steps = Steps(first, monkeypatch, (changes, "elect_leader"), (znodes, "encode_state"))
    server.expire(second.store)
    assert leaders(first, "t") == [(1, 1, (1,))] * 1200
    assert sum(steps.counts) == 2 * 1250
    assert max(steps.counts) <= 500
    assert first.image.contents() == stored(first)


def test_many_partitions_are_taken_offline_in_steps(two, monkeypatch):
    first, _ = two
    create(first, new("t", -1, -1, assignments=[(index, [1, 2]) for index in range(1200)]))
    steps = Steps(first, monkeypatch, (changes, "elect_leader"), (znodes, "encode_state"))
    run_now(first.controller.take_offline([("t", index) for index in range(1200)]))
    assert leaders(first, "t") == [(2, 1, (2,))] * 1200
    assert sum(steps.counts) == 2 * 1200
    assert max(steps.counts) <= 500


def test_a_deletion_whose_removal_is_dropped_with_the_session_has_succeeded(server):
    cluster = Cluster(server=server)
    create(cluster, new("a"))
    executor = SteppedExecutor()
    cluster.controller.run_on(executor)
    write = cluster.store.transaction

    async def transaction(operations):
        await Step()
        if any(operation.path == znodes.broker_config_path(None) for operation in operations):
            # Meanwhile the removal of the deleted topic waits.
            server.expire(cluster.store)
        return await write(operations)

    cluster.store.transaction = transaction
    deletion = executor.start(cluster.controller.delete_topics(["a"]))
    change = executor.start(cluster.controller.put_broker_config(None, {"log.retention.ms": "1"}))
    executor.finish()
    assert deletion.outcome() == {}
    with pytest.raises(KafkaError):
        change.outcome()
    assert cluster.controller.image.topics == {}
