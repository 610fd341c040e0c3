"""A single client of a simulated broker, which sends one request at a time, for tests."""

from odradek.log.storage.filesystem import write_whole
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from odradek.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochRequestOffsetForLeaderTopic,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.simulation.tests.test_world import finish
from odradek.simulation.world import World

UNSETTLED = {3, 6, 14, 15, 16, 51}
"""Errors after which a client retries: no leader, coordinator loading or not available, transaction in progress."""


class SoleClient:
    """A world with a broker that is up, and its only client."""

    def __init__(self, **properties):
        self.world = World(1, {name.replace("_", "."): value for name, value in properties.items()})
        self.start()

    # The operator

    def start(self):
        self.world.broker.start()
        assert self.world.run(lambda: self.world.broker.is_up, 60), self.world.failures

    def stop(self):
        self.world.broker.stop()
        assert self.world.run(lambda: not self.world.broker.is_alive, 60)

    def restart_after_kill(self, times=1):
        for _ in range(times):
            self.world.broker.kill()
            self.start()

    def lose_power(self):
        """Power off the machine; all unsynced data is lost."""
        self.world.broker.disk._random = None  # type: ignore[assignment]
        self.world.broker.lose_power(lose_names=False)

    def restart_after_power_loss(self):
        self.lose_power()
        self.start()

    def wait(self, seconds):
        self.world.run(lambda: False, seconds)

    def leave_store_behind(self):
        """Return a copy of the store from before the leader epochs grew from 0 to 3."""
        self.wait(5)
        self.stop()
        backup = self.world.metadata.copy()
        self.start()
        self.restart_after_kill(times=3)
        return backup

    def restart_with_store(self, backup):
        """Replace the store by a copy of it, between a clean stop and a start."""
        self.wait(5)
        self.stop()
        self.world.metadata.restore(backup)
        self.start()

    def adopt(self):
        """Start without the store."""
        self.world.metadata.lose()
        self.world.broker.properties["log.dirs.adopt"] = "true"
        self.start()
        del self.world.broker.properties["log.dirs.adopt"]

    def start_in_vain(self):
        """Start the broker, which fails; return the reason."""
        reasons: list[str] = []
        self.world.broker.on_start_failure = reasons.append
        self.world.broker.start()
        assert self.world.run(lambda: not self.world.broker.is_alive, 60)
        self.world.broker.on_start_failure = self.world.fail
        [reason] = reasons
        return reason

    def replace_file(self, path, content):
        """Replace the content of a file; return the old one."""
        disk = self.world.broker.disk
        disk.is_down = False
        old = disk.read_bytes(path)
        write_whole(disk, path, content, sync=True)
        disk.is_down = True
        return old

    @property
    def services(self):
        return self.world.broker.broker.services

    def epochs(self, topic="t"):
        """Return the leader epoch of each partition."""
        return [partition.leader_epoch for partition in self.services.metadata.topics[topic].partitions]

    def log(self, topic="t", partition=0):
        return self.services.logs.get(topic, partition)

    # Requests

    def ask(self, message, version):
        async def request():
            connection = await self.world.connect()
            response = await connection.request(message, version, client_id="test")
            connection.close()
            return response

        return finish(self.world, request())

    def until_settled(self, ask):
        """Repeat a request until its error code, or the first of its results, is final."""
        for _ in range(100):
            result = ask()
            if (result[0] if isinstance(result, tuple) else result) not in UNSETTLED:
                break
            self.wait(0.2)
        return result

    def create_topic(self, name="t", partitions=1):
        topic = CreateTopicsRequestCreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        [created] = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics
        assert created.error_code == 0

    def add_partitions(self, count, topic="t"):
        """Increase the number of partitions of a topic to `count`."""
        topics = [CreatePartitionsRequestCreatePartitionsTopic(name=topic, count=count, assignments=None)]
        [grown] = self.ask(CreatePartitionsRequest(topics=topics, timeout_ms=1000), 3).results
        assert grown.error_code == 0

    def produce(self, *values, topic="t", partition=0):
        """Write records; return the offset of the first one."""
        records = build_batch([(self.world.now_ms(), b"k", value, ()) for value in values])
        return self._produce(records, topic, partition)

    def _produce(self, records, topic, partition, transactional_id=None):
        data = ProduceRequestPartitionProduceData(index=partition, records=records)
        topics = [ProduceRequestTopicProduceData(name=topic, partition_data=[data])]
        request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=topics)
        [produced] = self.ask(request, 9).responses[0].partition_responses
        assert produced.error_code == 0
        return produced.base_offset

    def end_of_epoch(self, epoch, topic="t", partition=0):
        """Return the epoch that OffsetForLeaderEpoch finds, and its end."""
        wanted = OffsetForLeaderEpochRequestOffsetForLeaderPartition(
            partition=partition, current_leader_epoch=-1, leader_epoch=epoch
        )
        topics = [OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=topic, partitions=[wanted])]
        [end] = self.ask(OffsetForLeaderEpochRequest(topics=topics), 4).topics[0].partitions
        return end.leader_epoch, end.end_offset

    def find_coordinator(self, key, key_type):
        self.ask(FindCoordinatorRequest(key=key, key_type=key_type), 3)

    def init_producer(self, transactional_id="x"):
        """Return the error code, the producer id and its epoch."""
        self.find_coordinator(transactional_id, 1)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60000)

        def ask():
            response = self.ask(request, 3)
            return response.error_code, response.producer_id, response.producer_epoch

        return self.until_settled(ask)

    def commit_transaction(self, value, topic="t", transactional_id="x"):
        """Write one record in a transaction of a new producer epoch."""
        error, producer_id, epoch = self.init_producer(transactional_id)
        assert error == 0
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )

        def add():
            [result] = self.ask(added, 3).results_by_topic_v3_and_below[0].results_by_partition
            return result.partition_error_code

        assert self.until_settled(add) == 0
        records = build_batch(
            [(self.world.now_ms(), b"k", value, ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        self._produce(records, topic, 0, transactional_id)
        end = EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True
        )
        assert self.until_settled(lambda: self.ask(end, 3).error_code) == 0

    def commit_offset(self, group, offset):
        """Commit an offset; return the error code."""
        self.find_coordinator(group, 0)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
        request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)
        return self.until_settled(lambda: self.ask(request, 8).topics[0].partitions[0].error_code)

    def committed_offset(self, group):
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=False)

        def ask():
            response = self.ask(request, 7)
            return response.error_code, response

        error, response = self.until_settled(ask)
        assert error == 0
        return response.topics[0].partitions[0].committed_offset
