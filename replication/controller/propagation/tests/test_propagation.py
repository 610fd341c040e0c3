"""Requests of the controller to brokers. Section numbers are those of Kafka's ZooKeeper mode in `zookeeper-mode.md`."""

from itertools import pairwise

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from odradek.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from odradek.protocol.messages.stop_replica import StopReplicaResponse, StopReplicaResponseStopReplicaPartitionError
from odradek.replication.controller.propagation import epoch_propagation
from odradek.replication.controller.propagation.epoch_propagation import EpochPropagation
from odradek.replication.controller.propagation.propagation import stop_errors
from odradek.replication.controller.propagation.requests import ControlBatch, ReplicaToStop
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.metadata.loader import load_topic
from odradek.replication.metadata.store import Create, StoreUnavailableError, run_now
from odradek.replication.tests.cluster_requests import (
    alter_row,
    create,
    delete,
    nodes,
    shut_down,
    states,
    topic_id,
)
from odradek.replication.tests.cluster_support import World
from odradek.replication.tests.support import broker

E = ErrorCode


@pytest.fixture
def world():
    return World()


def test_a_first_broker_is_the_controller_and_gets_its_own_updates():
    world = World(broker_ids=(1,))
    assert world.take() == {1: [("UM", [1], {}), ("UM", [1], {})]}
    assert world.channels == []


def test_a_new_topic_goes_to_its_isr_as_new_and_to_all_caches(world):
    """Section 5: New->Online."""
    world.take()
    create(world, "t", (1, 2), (2, 1))
    rows = {"t-0": (1, 0, [1, 2]), "t-1": (2, 0, [2, 1])}
    roles = ("LAI", {name: (*row, "new") for name, row in rows.items()})
    update = ("UM", [1, 2, 3], rows)
    assert world.take() == {1: [roles, update], 2: [roles, update], 3: [update]}


def test_requests_carry_the_epochs_and_the_addresses_of_the_inter_broker_listener(world):
    world.take()
    create(world, "t", (2, 3))
    roles, update = world.fakes[3].requests
    assert (roles.controller_id, roles.controller_epoch, roles.type) == (1, 1, 0)
    assert roles.broker_epoch == update.broker_epoch == world.fakes[3].epoch
    assert [(row.broker_id, row.host_name, row.port) for row in roles.live_leaders] == [(2, "host", 9002)]
    assert [(e.listener, e.host, e.port, e.security_protocol) for e in update.live_brokers[1].endpoints] == [
        ("PLAINTEXT", "host", 9002, 0)
    ]
    assert {channel.client_id for channel in world.channels} == {"1"}


def test_the_failure_of_a_broker_elects_leaders_and_shrinks_the_other_isrs(world):
    """Sections 5 and 6: each removal by the controller begins a leader epoch; a sole member stays."""
    create(world, "t", (2, 1, 3), (1, 2, 3), (2,), (1, 3))
    world.take()
    world.crash(2)
    world.executor.finish()
    rows = {"t-0": (1, 1, [1, 3], [2]), "t-1": (1, 1, [1, 3], [2]), "t-2": (-1, 1, [2], [2])}
    roles = ("LAI", {"t-0": (1, 1, [1, 3]), "t-1": (1, 1, [1, 3])})
    update = ("UM", [1, 3], rows)
    assert world.take() == {1: [roles, update], 3: [roles, update]}
    assert states(world, "t") == [(1, 1, (1, 3)), (1, 1, (1, 3)), (-1, 1, (2,)), (1, 0, (1, 3))]


def test_a_broker_that_starts_gets_all_metadata_and_then_its_roles(world):
    create(world, "t", (2, 1), (1, 3), (2,))
    world.crash(2)
    world.executor.finish()
    world.take()
    world.start(2)
    all_rows = {"t-0": (1, 1, [1]), "t-1": (1, 0, [1, 3]), "t-2": (2, 2, [2])}
    roles = ("LAI", {"t-0": (1, 1, [1]), "t-2": (2, 2, [2])})
    update = ("UM", [1, 3, 2], {"t-0": (1, 1, [1]), "t-2": (2, 2, [2])})
    brokers = ("UM", [1, 3, 2], {})
    assert world.take() == {1: [brokers, update], 2: [("UM", [1, 3, 2], all_rows), roles], 3: [brokers, update]}


def test_caches_have_a_leader_that_has_started_before_followers_are_assigned_to_it(world):
    """A follower of Apache Kafka does not follow a leader that is not in its cache, and gets no second request."""
    create(world, "t", (2, 3))
    world.crash(3)
    world.executor.finish()
    world.crash(2)
    world.executor.finish()
    world.start(3)
    world.take()
    world.start(2)
    assert world.take()[3] == [
        ("UM", [1, 3, 2], {}),
        ("LAI", {"t-0": (2, 3, [2])}),
        ("UM", [1, 3, 2], {"t-0": (2, 3, [2])}),
    ]


def test_a_bounced_broker_fails_and_starts(world):
    """Section 4: a larger epoch of a registration."""
    create(world, "t", (2, 1))
    node = world.nodes[2]
    world.server.expire(node.store)
    node.rejoin()
    world.executor.finish()
    assert states(world, "t") == [(1, 1, (1,))]
    assert world.fakes[2].roles == {("t", 0): (1, 1, (1,), (2, 1))}
    assert world.active.controller.image.brokers[2].epoch == world.fakes[2].epoch


def test_a_leader_that_restarted_unnoticed_loses_its_leadership_to_a_replica_with_all_records(world):
    """The controller failed with it: no controller has seen it fail, and a power failure may have cost it records."""
    create(world, "t", (3, 1))
    create(world, "alone", (3,))
    create(world, "earlier", (1, 2))
    changes = world.active.controller.changes
    before_its_registration = world.epoch_of(3) - 1
    assert world.epoch_of(1) < before_its_registration
    writes = {(name, 0): before_its_registration for name in ("t", "alone")} | {("earlier", 0): 1 << 40}
    world.run(changes.remove_failed("a takeover", writes))
    world.run(changes.elect_leaders("a takeover"))
    assert states(world, "t") == [(1, 2, (1,))]
    assert states(world, "alone") == [(3, 2, (3,))]
    assert states(world, "earlier") == [(1, 0, (1, 2))]


def test_a_changed_endpoint_updates_all_caches(world):
    world.take()
    metadata = broker(2, port=7)
    run_now(world.nodes[2].store.set(znodes.broker_path(2), znodes.encode_broker(metadata, 0)))
    world.executor.finish()
    update = ("UM", [1, 2, 3], {})
    assert world.take() == {1: [update], 2: [update], 3: [update]}
    assert world.active.controller.image.brokers[2].endpoints == metadata.endpoints


def test_a_new_controller_sends_brokers_first_and_then_everything(world):
    """Section 3, with its order trap: dead leaders are removed before leaders are elected, two leader epochs later."""
    create(world, "t", (1, 2, 3), (2, 1), (3, 2), (1,))
    world.take()
    world.crash(1)
    world.executor.finish()
    assert states(world, "t") == [(2, 2, (2, 3)), (2, 1, (2,)), (3, 0, (3, 2)), (-1, 1, (1,))]
    rows = {"t-0": (2, 2, [2, 3], [1]), "t-1": (2, 1, [2], [1]), "t-2": (3, 0, [3, 2]), "t-3": (-1, 1, [1], [1])}
    taken = world.take()
    assert taken[3] == [
        ("UM", [2, 3], {}),
        ("LAI", {"t-0": (2, 2, [2, 3]), "t-2": (3, 0, [3, 2])}),
        ("UM", [2, 3], rows),
    ]
    assert taken[2][1] == ("LAI", {"t-0": (2, 2, [2, 3]), "t-1": (2, 1, [2]), "t-2": (3, 0, [3, 2])})
    assert world.fakes[2].controller_epoch == world.fakes[3].controller_epoch == 2


def test_requests_are_sent_again_until_the_broker_is_removed(world):
    """Section 7: one in flight, 100 ms, forever."""
    world.take()
    world.fakes[2].is_up = False
    create(world, "t", (1,))
    create(world, "u", (1,))
    assert sorted(world.take()) == [1, 3]
    for _ in range(3):
        assert len(world.executor.sleeping) == 1
        world.executor.wake()
        world.executor.finish()
    world.fakes[2].is_up = True
    world.executor.wake()
    world.executor.finish()
    assert world.take() == {2: [("UM", [1, 2, 3], {"t-0": (1, 0, [1])}), ("UM", [1, 2, 3], {"u-0": (1, 0, [1])})]}
    world.fakes[2].is_up = False
    create(world, "v", (1,))
    world.crash(2)
    world.executor.finish()
    world.executor.wake()
    world.executor.finish()
    assert world.executor.sleeping == []


def test_a_controller_that_resigned_sends_nothing_more(world):
    world.fakes[2].is_up = False
    create(world, "t", (2, 3))
    first = world.nodes[1]
    world.server.expire(first.store)
    world.fakes[2].is_up = True
    world.executor.wake()
    world.executor.finish()
    assert not first.propagation.is_active
    assert {request.controller_epoch for request in world.fakes[2].requests[-3:]} == {2}
    assert world.fakes[2].refusals == world.fakes[3].refusals == []


def test_a_broker_with_a_later_controller_makes_the_controller_read_its_node_again(world):
    first = world.nodes[1]
    world.fakes[3].controller_epoch = 7
    posted = []
    first.controller._events.post = lambda kind, description, work: posted.append(description)
    create(world, "t", (3,))
    assert "a broker has a later controller" in posted


def test_replicas_of_a_failed_log_directory_are_taken_offline(world):
    """Section 7: KAFKA_STORAGE_ERROR in the response to LeaderAndIsr."""
    create(world, "t", (1, 2, 3), (2, 1))
    world.take()
    world.fakes[2].failed = {("t", 0), ("t", 1)}
    world.active.propagation.resend_roles(2)
    world.executor.finish()
    assert states(world, "t") == [(1, 1, (1, 3)), (1, 1, (1,))]
    taken = world.take()
    assert taken[2][0] == ("LAI", {"t-0": (1, 0, [1, 2, 3]), "t-1": (2, 0, [2, 1])})
    assert taken[2][1:] == [("UM", [1, 2, 3], {"t-0": (1, 1, [1, 3], [2]), "t-1": (1, 1, [1], [2])})]
    world.fakes[2].failed = set()
    world.crash(2)
    world.executor.finish()
    world.start(2)
    assert world.fakes[2].roles == {("t", 0): (1, 1, (1, 3), (1, 2, 3)), ("t", 1): (1, 1, (1,), (2, 1))}
    assert [p.offline for p in world.active.controller.image.topics["t"].partitions] == [(), ()]


def test_a_response_of_a_brokers_earlier_epoch_takes_no_replica_offline(world):
    """The broker has registered again with working log directories while the response was handled."""
    create(world, "t", (1, 2))
    earlier_epoch = world.fakes[2].epoch
    world.fakes[2].failed = {("t", 0)}
    world.active.propagation.resend_roles(2)
    respond, restarted = world.active.propagation._on_response, []

    def restart_first(broker_id, request, response):
        if not restarted:
            restarted.append(request.broker_epoch)
            world.fakes[2].failed = set()
            world.crash(2)
            world.start(2)
        respond(broker_id, request, response)

    world.active.propagation._current._queues[2]._on_response = restart_first
    world.executor.finish()
    assert restarted == [earlier_epoch]
    assert world.fakes[2].epoch > earlier_epoch
    assert world.active.controller.image.topics["t"].partitions[0].offline == ()


def respond_with_error(request):
    return LeaderAndIsrResponse(error_code=E.UNKNOWN_SERVER_ERROR)


def raise_error(request):
    raise RuntimeError("an error")


@pytest.mark.parametrize(("failures", "is_applied"), [(3, True), (21, False)])
@pytest.mark.parametrize(("broker_id", "fail"), [(2, respond_with_error), (1, raise_error)])
def test_a_request_that_fails_in_the_broker_is_sent_again_a_few_times(world, broker_id, fail, failures, is_applied):
    """An error was taken for an answer, so that the broker kept its old role until the next election.

    A request on which the controller's own broker (1) failed was repeated forever: its broker got no further role and
    no metadata.
    """
    fake = world.fakes[broker_id]
    update, failed = fake.leader_and_isr, []

    async def apply(request):
        if len(failed) == failures:
            return await update(request)
        failed.append(request)
        return fail(request)

    fake.leader_and_isr = apply
    create(world, "t", (1, 2))
    for _ in range(failures):
        world.executor.wake()
        world.executor.finish()
    assert (("t", 0) in fake.roles) is is_applied
    assert ("t", 0) in fake.cache


def test_large_changes_are_split_except_the_first_roles_of_a_broker(world, monkeypatch):
    monkeypatch.setattr(epoch_propagation, "PARTITIONS_PER_REQUEST", 300)
    monkeypatch.setattr(epoch_propagation, "_PARTITIONS_PER_PAUSE", 100)
    world.take()
    create(world, "t", *[(2, 3)] * 700)
    assert [(name, len(rows[-1])) for name, *rows in world.take()[3]] == [
        ("LAI", 200), ("UM", 200), ("LAI", 200), ("UM", 200), ("LAI", 200), ("UM", 200), ("LAI", 100), ("UM", 100),
    ]  # fmt: skip
    world.crash(3)
    world.executor.finish()
    world.take()
    world.start(3)
    assert [(name, len(rows[-1])) for name, *rows in world.take()[3]] == [
        ("UM", 300), ("UM", 300), ("UM", 100), ("LAI", 700),
    ]  # fmt: skip


def test_stop_replica_follows_the_publications_before_it(world):
    create(world, "t", (1, 2))
    world.take()
    answers = []
    world.active.propagation.stop_replicas(2, [ReplicaToStop("t", 0, 0, True)], lambda *answer: answers.append(answer))
    world.executor.finish()
    assert world.take() == {2: [("SR", {"t-0": (0, True)})]}
    [(broker_id, _, response)] = answers
    assert (broker_id, [row.error_code for row in response.partition_errors]) == (2, [0])


# Topics of other brokers


def test_a_topic_that_another_broker_created_begins_with_its_live_replicas(world):
    """Section 1: automatic creation is written by any broker. A partition without a live replica has no state."""
    world.take()
    rows = tuple(new_partition(replicas, (), 0) for replicas in [(2, 9), (9,)])
    operations = [
        Create(znodes.topic_config_path("t"), znodes.encode_config({})),
        Create(znodes.topic_path("t"), znodes.encode_topic(topic_id("t"), rows)),
    ]
    run_now(world.nodes[3].store.transaction(operations))
    world.executor.finish()
    update = ("UM", [1, 2, 3], {"t-0": (2, 0, [2], [9])})
    assert world.take() == {1: [update], 2: [("LAI", {"t-0": (2, 0, [2], "new")}), update], 3: [update]}
    assert run_now(world.nodes[3].store.get_children(znodes.partitions_path("t"))) == ["0"]
    world.start(9)
    assert states(world, "t") == [(2, 0, (2,)), (9, 0, (9,))]
    assert world.fakes[9].roles == {("t", 0): (2, 0, (2,), (2, 9)), ("t", 1): (9, 0, (9,), (9,))}


# Deletion


def test_a_deleted_topic_leaves_the_caches_and_then_its_replicas_are_deleted(world):
    """Section 8: mark, UpdateMetadata with leader -2, StopReplica, removal of the nodes."""
    create(world, "t", (1, 2), (2, 3))
    world.take()
    assert delete(world, "t") == {}
    update = ("UM", [1, 2, 3], {"t-0": (-2, 0, [1, 2]), "t-1": (-2, 0, [2, 3])})

    def stops(*indexes):
        return [("SR", {f"t-{index}": (-2, deletes) for index in indexes}) for deletes in (False, True)]

    assert world.take() == {1: [update, *stops(0)], 2: [update, *stops(0, 1)], 3: [update, *stops(1)]}
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == nodes(world, znodes.TOPIC_CONFIGS) == []
    create(world, "t", (1, 2))
    assert world.fakes[2].roles == {("t", 0): (1, 0, (1, 2), (1, 2))}


def test_a_deletion_that_is_marked_succeeds_although_the_session_ends_before_it_begins(world):
    """The client got UNKNOWN_SERVER_ERROR. The next controller deletes the topic."""
    create(world, "t", (2, 3))
    node = world.active
    transaction = node.store.transaction

    async def expire_at_states(operations):
        if any(operation.path.endswith("/state") for operation in operations):
            world.server.expire(node.store)
        return await transaction(operations)

    node.store.transaction = expire_at_states
    assert delete(world, "t") == {}
    world.executor.finish()
    assert world.active is not node
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


def test_a_deletion_that_is_marked_begins_later_if_the_store_fails(world):
    create(world, "t", (2, 3))
    node = world.active
    transaction = node.store.transaction

    async def fail_at_states(operations):
        if any(operation.path.endswith("/state") for operation in operations):
            node.store.transaction = transaction
            raise StoreUnavailableError("access is denied")
        return await transaction(operations)

    node.store.transaction = fail_at_states
    assert delete(world, "t") == {}
    world.executor.finish()
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


def test_a_topic_with_a_dead_replica_is_removed_when_its_broker_returns(world):
    """Section 8: clients see it deleted, its nodes stay with leader -1.

    The process of the broker may not have ended, but only its session: its metadata cache still has the topic.
    """
    create(world, "t", (1, 2), (1, 3))
    world.crash(2)
    world.executor.finish()
    assert delete(world, "t") == {}
    assert world.fakes[3].cache == {}
    assert states(world, "t") == [(-1, 2, (1,)), (-1, 1, (1, 3))]
    partitions = (new_partition((1,), {1}, 1),)
    again = [NewTopic(TopicMetadata("t", topic_id("u"), partitions), {})]
    errors = world.run(world.active.controller.create_topics(again))
    assert errors["t"].code == E.TOPIC_ALREADY_EXISTS
    world.take()
    world.start(2)
    assert world.take()[2] == [
        ("UM", [1, 3, 2], {}),
        ("UM", [1, 3, 2], {"t-0": (-2, 0, [1]), "t-1": (-2, 0, [1, 3])}),
        ("SR", {"t-0": (-2, False)}),
        ("SR", {"t-0": (-2, True)}),
    ]
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


def test_a_new_topic_does_not_have_the_configuration_of_a_deleted_one(world):
    """A late notice of the deleted topic's configuration allowed unclean elections in the new topic."""
    create(world, "t", (1, 2))
    world.crash(2)
    world.executor.finish()
    assert delete(world, "t") == {}
    store, node = world.server.connect(), znodes.encode_config({"unclean.leader.election.enable": "true"})
    run_now(store.set(znodes.topic_config_path("t"), node))
    notice = znodes.encode_config_change("topics/t")
    run_now(store.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True))
    world.executor.finish()
    world.start(2)
    create(world, "t", (1, 2))
    assert not world.active.controller.context.allows_unclean_election("t")


def test_deletions_are_repeated_for_brokers_that_have_started_only(world, monkeypatch):
    """Without a recipient all partitions of the deleted topics delayed the changes after the failure of a broker."""
    create(world, "t", (1, 2), (1, 2))
    world.crash(2)
    world.executor.finish()
    assert delete(world, "t") == {}
    added, add_deletion = [], ControlBatch.add_deletion

    def recorded(batch, topic, index, brokers):
        added.append(index)
        add_deletion(batch, topic, index, brokers)

    monkeypatch.setattr(ControlBatch, "add_deletion", recorded)
    world.crash(3)
    world.executor.finish()
    assert added == []
    world.start(2)
    assert added == [0, 1]


def test_many_replicas_are_deleted_in_steps(world, monkeypatch):
    """A topic of 10,000 partitions held the controller's thread for 300 ms, and each broker for 50 ms."""
    steps, rows = [], []
    context, size = world.active.controller.context, epoch_propagation.REPLICAS_PER_STOP
    put, pause = EpochPropagation.stop_replicas, context.pause

    async def count_steps():
        steps.append(len(rows))
        await pause()

    def count_rows(self, broker_id, replicas, answered=None):
        rows.extend(replicas)
        put(self, broker_id, replicas, answered)

    monkeypatch.setattr(context, "pause", count_steps)
    monkeypatch.setattr(EpochPropagation, "stop_replicas", count_rows)
    create(world, "t", *[(2,)] * (2 * size + 1))
    world.take()
    assert delete(world, "t") == {}
    assert [len(request[1]) for request in world.take()[2] if request[0] == "SR"] == 2 * [size, size, 1]
    assert len(rows) == 2 * (2 * size + 1)
    assert max(later - earlier for earlier, later in pairwise(steps)) == size
    assert nodes(world, znodes.TOPICS) == []


def test_replicas_that_are_deleted_in_several_requests_are_deleted_after_the_last_response(world):
    replicas = [("t", index, 0) for index in range(epoch_propagation.REPLICAS_PER_STOP + 1)]
    answers = []
    world.fakes[2].is_up = False
    world.active.propagation.delete_replicas(2, replicas, lambda: answers.append(len(world.fakes[2].requests)))
    world.executor.finish()
    world.take()
    world.fakes[2].is_up = True
    world.executor.wake()
    world.executor.finish()
    assert answers == [2]


def test_a_new_controller_finishes_a_deletion(world):
    create(world, "t", (2, 3), (3, 1))
    world.fakes[2].is_up = False
    assert delete(world, "t") == {}
    assert nodes(world, znodes.TOPICS) == ["t"]
    world.fakes[2].is_up = True
    world.crash(1)
    world.executor.finish()
    assert ("SR", {"t-0": (-2, True)}) in world.take()[2]
    assert nodes(world, znodes.TOPICS) == ["t"]
    world.start(1)
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


def test_a_topic_that_another_marks_is_deleted(world):
    create(world, "t", (2, 3))
    run_now(world.nodes[3].store.create(znodes.deletion_path("t")))
    run_now(world.nodes[3].store.create(znodes.deletion_path("unknown")))
    world.executor.finish()
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []
    assert world.fakes[2].deleted == {("t", 0)}


def test_marks_of_others_are_removed_if_deletion_is_disabled(world):
    create(world, "t", (2, 3))
    world.active.controller.deletion.is_enabled = lambda: False
    run_now(world.nodes[3].store.create(znodes.deletion_path("t")))
    world.executor.finish()
    assert nodes(world, znodes.DELETE_TOPICS) == []
    assert states(world, "t") == [(2, 0, (2, 3))]


def test_a_replica_on_a_failed_directory_is_deleted_after_the_next_start_of_its_broker(world):
    create(world, "t", (2, 3))
    world.fakes[2].failed = {("t", 0)}
    assert delete(world, "t") == {}
    assert nodes(world, znodes.TOPICS) == ["t"]
    world.fakes[2].failed = set()
    world.crash(2)
    world.executor.finish()
    assert nodes(world, znodes.TOPICS) == ["t"]
    world.start(2)
    assert nodes(world, znodes.TOPICS) == []


def test_a_reassignment_blocks_a_deletion(world):
    """Section 8."""
    create(world, "t", (1, 2))
    controller = world.active.controller
    topic = controller.image.topics["t"]
    moving = topic.partitions[0]._replace(replicas=(1, 2, 3), adding=(3,))
    controller.image.put_topic(topic._replace(partitions=(moving,)))
    assert delete(world, "t")["t"].code == E.REQUEST_TIMED_OUT
    assert nodes(world, znodes.DELETE_TOPICS) == ["t"]
    controller.image.put_topic(topic)
    world.run(controller.deletion.resume_unblocked())
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


# Notices and watches


def test_a_broker_notifies_the_controller_of_a_failed_log_directory(world):
    """Section 1: /log_dir_event_notification."""
    create(world, "t", (2, 1), (3, 2))
    world.fakes[2].failed = {("t", 0)}
    world.take()
    world.run(world.nodes[2].controller.take_offline([("t", 0)]))
    assert world.take()[2][0] == ("LAI", {"t-0": (2, 0, [2, 1]), "t-1": (3, 0, [3, 2])})
    assert states(world, "t") == [(1, 1, (1,)), (3, 0, (3, 2))]
    assert nodes(world, znodes.LOG_DIR_EVENTS) == []


def test_isr_changes_of_old_brokers_are_published(world):
    """Section 1: /isr_change_notification."""
    create(world, "t", (2, 1))
    partition = world.active.controller.image.topics["t"].partitions[0]
    store = world.nodes[2].store
    run_now(store.set(znodes.state_path("t", 0), znodes.encode_state(partition._replace(isr=(2,)))))
    world.take()
    notice = znodes.encode({"version": 1, "partitions": [{"topic": "t", "partition": 0}]})
    run_now(store.create(f"{znodes.ISR_CHANGES}/isr_change_", notice, sequential=True))
    world.executor.finish()
    update = [("UM", [1, 2, 3], {"t-0": (2, 0, [2])})]
    assert world.take() == {1: update, 2: update, 3: update}
    assert nodes(world, znodes.ISR_CHANGES) == []


def test_partitions_that_others_add_begin(world):
    create(world, "t", (2, 1))
    topic = world.active.controller.image.topics["t"]
    grown = (*topic.partitions, new_partition((3, 1), (), 0))
    world.take()
    run_now(world.nodes[2].store.set(znodes.topic_path("t"), znodes.encode_topic(topic.topic_id, grown)))
    world.executor.finish()
    assert world.take()[3] == [("LAI", {"t-1": (3, 0, [3, 1], "new")}), ("UM", [1, 2, 3], {"t-1": (3, 0, [3, 1])})]
    assert states(world, "t") == [(2, 0, (2, 1)), (3, 0, (3, 1))]


def test_topics_without_an_id_get_one(world):
    partition = new_partition((3, 1), (), 0)
    text = znodes.decode(znodes.encode_topic(topic_id("t"), (partition,)))
    del text["topic_id"]
    run_now(world.nodes[2].store.create(znodes.topic_path("t"), znodes.encode(text)))
    world.executor.finish()
    first = run_now(load_topic(world.server.connect(), "t"))
    assert first.topic_id == world.active.controller.image.topics["t"].topic_id != bytes(16)
    run_now(world.nodes[2].store.set(znodes.topic_path("t"), znodes.encode(text)))
    world.crash(1)
    world.executor.finish()
    assert run_now(load_topic(world.server.connect(), "t")).topic_id != bytes(16)


def test_a_topic_keeps_its_id_that_a_tool_removed(world):
    """The next controller gave the topic another id, with which all brokers began with empty logs."""
    create(world, "t", (2, 1))
    topic = world.active.controller.image.topics["t"]
    text = znodes.decode(znodes.encode_topic(topic_id("t"), (*topic.partitions, new_partition((3, 1), (), 0))))
    del text["topic_id"]
    run_now(world.server.connect().set(znodes.topic_path("t"), znodes.encode(text)))
    world.executor.finish()
    world.crash(1)
    world.executor.finish()
    stored = run_now(load_topic(world.server.connect(), "t"))
    assert stored.topic_id == topic_id("t")
    assert [partition.replicas for partition in stored.partitions] == [(2, 1), (3, 1)]
    assert world.fakes[3].roles["t", 1] == (3, 1, (3,), (3, 1))
    assert world.fakes[2].role_ids["t"] == topic_id("t")


def test_configurations_reach_the_caches_of_all_brokers(world):
    create(world, "t", (2, 1))
    world.run(world.active.controller.put_topic_config("t", {"flush.ms": "5"}))
    for node in world.nodes.values():
        assert node.cache.topic_configs == {"t": {"flush.ms": "5"}}
    world.run(world.active.controller.put_broker_config(None, {"log.retention.ms": "7"}))
    late = world.start(4)
    for node in world.nodes.values():
        assert node.cache.broker_configs == {None: {"log.retention.ms": "7"}}
    assert late.cache.topic_configs == {"t": {"flush.ms": "5"}}


# Other requests of brokers


def test_controlled_shutdown_moves_leaderships_and_shrinks_isrs(world):
    """Section 7; partitions with one replica are skipped."""
    create(world, "t", (2, 1, 3), (1, 2), (2,), (2, 3))
    world.crash(3)
    world.executor.finish()
    world.take()
    assert shut_down(world, 2) == (0, [("t", 3)])
    assert states(world, "t") == [(1, 2, (1,)), (1, 1, (1,)), (2, 0, (2,)), (2, 1, (2,))]
    assert world.take()[2][-1] == ("SR", {"t-0": (2, False), "t-1": (1, False)})
    assert alter_row(world, "t", 1, [1, 2], leader_epoch=1, partition_epoch=1).error_code == E.INELIGIBLE_REPLICA
    world.start(3)
    now = {"leader": 2, "leader_epoch": 1, "partition_epoch": 1}
    assert alter_row(world, "t", 3, [2, 3], **now).error_code == E.INELIGIBLE_REPLICA
    assert shut_down(world, 2) == (0, [("t", 3)])
    world.crash(2)
    world.executor.finish()
    world.start(2)
    assert world.active.controller.context.shutting_down == set()
    assert alter_row(world, "t", 1, [1, 2], leader_epoch=1, partition_epoch=1).error_code == E.NONE


def test_controlled_shutdown_refuses_unknown_brokers_and_old_epochs(world):
    assert shut_down(world, 2, epoch=0) == (E.STALE_BROKER_EPOCH, [])
    assert shut_down(world, 2, epoch=-1) == (E.NONE, [])
    world.fakes[9] = world.fakes[2]
    assert shut_down(world, 9) == (E.BROKER_NOT_AVAILABLE, [])
    request = ControlledShutdownRequest(broker_id=2, broker_epoch=-1)
    response = world.run(world.nodes[3].controller.controlled_shutdown(request))
    assert response.error_code == E.NOT_CONTROLLER


def registration(world, broker_id):
    return world.active.controller.image.brokers[broker_id]


def test_a_refused_connection_moves_leaderships_before_the_session_expires(world):
    create(world, "t", (2, 1, 3), (1, 2), (2,), (2, 3))
    world.fakes[2].is_up = False
    world.active.controller.on_broker_refused(registration(world, 2))
    world.executor.finish()
    assert states(world, "t") == [(1, 1, (1, 3)), (1, 1, (1,)), (2, 0, (2,)), (3, 1, (3,))]
    assert world.fakes[3].roles["t", 3][:3] == (3, 1, (3,))
    assert 2 in world.active.controller.image.brokers
    assert world.active.controller.context.shutting_down == set()


def test_a_refused_connection_of_an_earlier_registration_moves_nothing(world):
    create(world, "t", (2, 1, 3))
    earlier = registration(world, 2)
    world.crash(2)
    world.executor.finish()
    world.start(2)
    before = states(world, "t")
    world.active.controller.on_broker_refused(earlier)
    world.nodes[3].controller.on_broker_refused(registration(world, 2))
    world.executor.finish()
    assert states(world, "t") == before


def test_another_controller_is_elected_in_place_of_one_that_refuses_connections(world):
    create(world, "t", (1, 2, 3))
    assert world.active.controller.broker_id == 1
    # The process has ended; its session has not.
    world.nodes[1].controller.stop()
    world.nodes[3].controller.on_controller_refused(1)
    world.executor.finish()
    assert world.active.controller.broker_id != 1
    epoch = world.active.controller.epoch
    for node in world.nodes.values():
        node.controller.on_controller_refused(1)
    world.executor.finish()
    assert world.active.controller.epoch == epoch


def test_a_controller_that_was_elected_meanwhile_is_not_replaced(world, monkeypatch):
    other = world.nodes[3].controller
    read = other.store.get

    async def elect_then_read(path, watch=None):
        found = await read(path, watch)
        if path == znodes.CONTROLLER:
            monkeypatch.undo()
            world.nodes[2].controller.on_controller_refused(1)
        return found

    monkeypatch.setattr(other.store, "get", elect_then_read)
    other.on_controller_refused(1)
    world.executor.finish()
    assert world.active.controller.epoch == 2


def test_blocks_of_producer_ids_are_disjoint(world):
    """Section 7: blocks of 1000, equality of the broker epoch."""

    def allocate(broker_id, epoch, node=world.active):
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        response = world.run(node.controller.allocate_producer_ids(request))
        return response.error_code, response.producer_id_start, response.producer_id_len

    assert allocate(2, world.fakes[2].epoch) == (0, 0, 1000)
    assert allocate(3, world.fakes[3].epoch) == (0, 1000, 1000)
    assert allocate(3, world.fakes[3].epoch + 1)[0] == E.STALE_BROKER_EPOCH
    assert allocate(9, 1)[0] == E.BROKER_ID_NOT_REGISTERED
    assert allocate(3, world.fakes[3].epoch, world.nodes[2])[0] == E.NOT_CONTROLLER


def test_an_error_of_a_later_release_is_an_unknown_error():
    row = StopReplicaResponseStopReplicaPartitionError(topic_name="t", partition_index=1, error_code=9_999)
    assert stop_errors(StopReplicaResponse(partition_errors=[row])) == {("t", 1): E.UNKNOWN_SERVER_ERROR}
