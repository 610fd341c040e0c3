"""The controller: a broker's registration, its election, and every change of topics and configurations.

A change is first written to the store, in one transaction that also demands that this broker still is the
controller, then put into the image and published. A lone broker is always elected; nothing else sets it apart.
What the changes may be is decided by `topic_admin` and `config_admin`.
"""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.topic_deletion import MAX_OPERATIONS, Pause, TopicDeletion, as_kafka_error
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.loader import load_image, read_node
from odradek.replication.metadata.reload import reload_image
from odradek.replication.metadata.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    NodeExistsError,
    Operation,
    OperationResult,
    SessionEvent,
    SetData,
    TransactionError,
)

logger = logging.getLogger(__name__)

CONFIG_CHANGE_KEPT_MS = 15 * 60_000
_PARTITIONS_PER_PAUSE: Final = 500
"""To make their operations takes about 1 ms."""


class StartError(Exception):
    """The broker cannot join the cluster; the message is one readable line."""


class NewTopic(NamedTuple):
    """A topic to be created: its metadata, with leaders and ISR, and its explicit configuration."""

    topic: TopicMetadata
    configs: Mapping[str, str]


class Controller:
    """One broker's part in the control of its cluster.

    image: the metadata image, loaded by `start` and kept by every change
    is_active, epoch: whether this broker is the controller, and in which epoch
    deletion: deletes topics and finishes what was begun
    pause: awaited now and then in changes of many topics or partitions; the server has it give way to clients
    """

    def __init__(
        self, store: MetadataStore, image: ClusterMetadata, broker_id: int, now_ms: Callable[[], int]
    ) -> None:
        self.store = store
        self.image = image
        self.broker_id = broker_id
        self.is_active = False
        self.epoch = 0
        self.pause: Pause = _no_pause
        self.deletion = TopicDeletion(self)
        self._epoch_version = 0
        self._now_ms = now_ms
        store.add_session_listener(self._on_session)

    async def prepare(self, cluster_id: str, *, begins_adoption: bool = False) -> str:
        """Lays out an empty store and returns the cluster's id: the given one if the store has none yet.

        Raises StartError if it has another. With `begins_adoption` a store that is laid out now notes that it lacks
        topics (`adoption`).
        """
        laid_out = [await self.store.exists(path) for path in (znodes.CLUSTER_ID, znodes.CONTROLLER_EPOCH)]
        if None in laid_out:
            await self._lay_out(cluster_id, [znodes.ADOPTION] if begins_adoption else [])
        stored = await stored_cluster_id(self.store)
        if cluster_id and stored != cluster_id:
            raise StartError(
                f"the data directory belongs to cluster {cluster_id}, the metadata store to cluster {stored}"
            )
        return stored

    async def _lay_out(self, cluster_id: str, marks: Sequence[str]) -> None:
        """Creates what is missing of the layout, the cluster's id last, in one transaction if nobody interferes."""
        nodes: dict[str, bytes | None] = {}
        for path in znodes.PERSISTENT_PATHS:
            parts = path[1:].split("/")
            nodes |= {"/" + "/".join(parts[:depth]): None for depth in range(1, len(parts) + 1)}
        nodes |= dict.fromkeys(marks)
        nodes |= {znodes.CONTROLLER_EPOCH: b"0", znodes.CLUSTER_ID: znodes.encode_cluster_id(cluster_id)}
        while missing := [path for path in nodes if await self.store.exists(path) is None]:
            try:
                await self.store.transaction([Create(path, nodes[path]) for path in missing])
            except TransactionError as error:
                if not isinstance(error.cause, NodeExistsError):
                    raise

    async def start(self, registration: BrokerMetadata, *, new_leader_epochs: bool = False) -> None:
        """Registers the broker, has the controller elected and loads the image.

        If this broker becomes the controller it elects leaders for partitions without a live one;
        `new_leader_epochs` begins a new leader epoch for every partition that it leads, as is due after an unclean
        stop: what the log lost must not be mistaken for what is written in its place. Topics whose deletion was
        begun are not in the image of brokers: `finish_deletions` is the next step once replicas follow the image.
        Raises StartError.
        """
        await self._register(registration)
        await self._elect()
        await load_image(self.store, self.image)
        if self.is_active:
            await self._elect_leaders(new_leader_epochs)

    async def _register(self, broker: BrokerMetadata) -> None:
        await self._check_endpoints(broker)
        path = znodes.broker_path(broker.broker_id)
        data = znodes.encode_broker(broker, self._now_ms())
        try:
            await self.store.transaction([Create(path, ephemeral=True), SetData(path, data, 0)])
        except TransactionError as error:
            if not isinstance(error.cause, NodeExistsError):
                raise
            stat = await self.store.exists(path)
            if stat is None or stat.ephemeral_owner != self.store.session_id:
                raise StartError(f"broker id {broker.broker_id} is in use by another broker") from error

    async def _check_endpoints(self, broker: BrokerMetadata) -> None:
        mine = {(e.host, e.port) for e in broker.endpoints if e.port}
        for name in await self.store.get_children(znodes.BROKER_IDS):
            if name == str(broker.broker_id):
                continue
            node = await self.store.get(f"{znodes.BROKER_IDS}/{name}")
            for endpoint in znodes.decode_broker(int(name), node.data, -1).endpoints:
                if (endpoint.host, endpoint.port) in mine:
                    raise StartError(f"broker {name} already advertises {endpoint.host}:{endpoint.port}")

    async def _elect(self) -> None:
        if await self.store.exists(znodes.CONTROLLER) is not None:
            return
        epoch, version = await read_node(
            self.store, znodes.CONTROLLER_EPOCH, lambda node: (int(node.data or b"0") + 1, node.stat.version)
        )
        claim = znodes.encode_controller(self.broker_id, self._now_ms())
        try:
            results = await self.store.transaction(
                [
                    Create(znodes.CONTROLLER, claim, ephemeral=True),
                    SetData(znodes.CONTROLLER_EPOCH, b"%d" % epoch, version),
                ]
            )
        except TransactionError as error:
            if isinstance(error.cause, NodeExistsError | BadVersionError):
                return
            raise
        stat = results[1]
        assert stat is not None
        assert not isinstance(stat, str)
        self.is_active = True
        self.epoch = epoch
        self._epoch_version = stat.version
        logger.info("elected controller broker=%d epoch=%d", self.broker_id, epoch)

    async def _elect_leaders(self, new_epochs: bool) -> None:
        changed = []
        # Of a topic whose removal was interrupted, nodes may be missing.
        deleted = set(await self.store.get_children(znodes.DELETE_TOPICS))
        for topic in self.image.topics.values():
            if topic.name in deleted:
                continue
            partitions = tuple(self._elected(p, new_epochs) for p in topic.partitions)
            if partitions != topic.partitions:
                changed.append(topic._replace(partitions=partitions))
        await self.put_partitions(changed)

    def _elected(self, partition: PartitionMetadata, new_epochs: bool) -> PartitionMetadata:
        """A partition with a live leader of its ISR, in assignment order; without a live one it has no leader."""
        live = self.image.brokers.keys() - set(partition.offline)
        if partition.leader in live and not (new_epochs and partition.leader == self.broker_id):
            return partition
        isr = partition.isr or partition.replicas
        live_isr = tuple(replica for replica in isr if replica in live)
        leader = next((replica for replica in partition.replicas if replica in live_isr), -1)
        if leader == -1 and partition.leader == -1:
            return partition
        return partition._replace(
            leader=leader,
            leader_epoch=partition.leader_epoch + 1,
            isr=live_isr or isr,
            controller_epoch=self.epoch,
        )

    async def write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Carries out a change as the controller: all of it, or nothing.

        Raises KafkaError NOT_CONTROLLER if this broker is not the controller (any more), TransactionError as the
        store does; its index counts the given operations.
        """
        self.check_active()
        fence = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        try:
            results = await self.store.transaction([fence, *operations])
        except TransactionError as error:
            if error.index == 0:
                self.resign()
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker became the controller") from error
            raise TransactionError(error.index - 1, error.cause) from error
        return results[1:]

    def check_active(self) -> None:
        """Raises KafkaError NOT_CONTROLLER unless this broker is the controller."""
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")

    def resign(self) -> None:
        """Stops acting as the controller."""
        if self.is_active:
            self.is_active = False
            logger.warning("no longer the controller broker=%d epoch=%d", self.broker_id, self.epoch)

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, KafkaError]:
        """Creates topics and publishes them together; returns the errors of those that could not be created."""
        names = [new.topic.name for new in topics]
        await self.deletion.finish(names)
        errors = {name: error for name in names if (error := self.deletion.obstacle(name)) is not None}
        for batch in _batches([new for new in topics if new.topic.name not in errors]):
            refused = await self._create(batch)
            for new in batch:
                if new.topic.name in refused:
                    continue
                self.image.put_topic(new.topic)
                if new.configs:
                    self.image.put_topic_config(new.topic.name, new.configs)
            errors |= refused
        self.image.publish()
        return errors

    async def _create(self, batch: Sequence[NewTopic]) -> dict[str, KafkaError]:
        """Writes new topics, all in one transaction if the store takes it; returns the errors of those refused."""
        try:
            await self.write([operation for new in batch for operation in await self._creation(new)])
        except TransactionError as error:
            if len(batch) == 1:
                return {batch[0].topic.name: _creation_error(batch[0].topic.name, error)}
            errors: dict[str, KafkaError] = {}
            for new in batch:
                errors |= await self._create([new])
            return errors
        except (KafkaError, MetadataStoreError) as error:
            return {new.topic.name: as_kafka_error(error) for new in batch}
        return {}

    async def _creation(self, new: NewTopic) -> list[Operation]:
        topic = new.topic
        return [
            Create(znodes.topic_config_path(topic.name), znodes.encode_config(dict(new.configs))),
            Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.topic_id, topic.partitions)),
            Create(znodes.partitions_path(topic.name)),
            *await self._partition_creations(topic, 0),
        ]

    async def _partition_creations(self, topic: TopicMetadata, first: int) -> list[Operation]:
        operations: list[Operation] = []
        for index in range(first, len(topic.partitions)):
            if index % _PARTITIONS_PER_PAUSE == 0:
                await self.pause()
            state = znodes.encode_state(topic.partitions[index])
            operations.append(Create(znodes.partition_path(topic.name, index)))
            operations.append(Create(znodes.state_path(topic.name, index), state))
        return operations

    async def _change(self, operations: Sequence[Operation]) -> None:
        """Carries out a client's change, all of it or nothing. Raises KafkaError, whatever the store refuses."""
        try:
            await self.write(operations)
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error

    async def add_partitions(self, grown: TopicMetadata, old_count: int) -> None:
        """Writes and publishes a topic that has more partitions than before. Raises KafkaError."""
        operations: list[Operation] = [
            SetData(znodes.topic_path(grown.name), znodes.encode_topic(grown.topic_id, grown.partitions))
        ]
        operations += await self._partition_creations(grown, old_count)
        # A later topic of that name must not be given this one's id and partitions.
        await self.store.ready()
        self._check_current(grown)
        await self._change(operations)
        self._check_current(grown)
        # Those that were there may have other leaders by now.
        partitions = self.image.topics[grown.name].partitions[:old_count] + grown.partitions[old_count:]
        self.image.put_topic(grown._replace(partitions=partitions))
        self.image.publish()

    def _is_current(self, topic: TopicMetadata) -> bool:
        """Return whether the topic is still there: it may be deleted while a change of it is under way to the store."""
        current = self.image.topics.get(topic.name)
        return current is not None and current.topic_id == topic.topic_id

    def _check_current(self, topic: TopicMetadata) -> None:
        if not self._is_current(topic):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic.name}' was deleted while it was changed."
            )

    async def put_partitions(self, topics: Iterable[TopicMetadata]) -> None:
        """Writes and publishes new leaders and ISRs; each state must still have the epoch the image knows.

        Many topics go into one transaction, in which all of a topic is: a commit is what takes time. If one fails, the
        topics of those before it are changed and published.
        """
        try:
            await self._put_partitions(topics)
        finally:
            self.image.publish()

    async def _put_partitions(self, topics: Iterable[TopicMetadata]) -> None:
        operations: list[Operation] = []
        written: list[tuple[TopicMetadata, dict[int, PartitionMetadata]]] = []
        for changed in topics:
            if not self._is_current(changed):
                continue
            current = self.image.topics[changed.name].partitions
            partitions: dict[int, PartitionMetadata] = {}
            for index, partition in enumerate(changed.partitions):
                if partition != current[index]:
                    partitions[index] = partition._replace(partition_epoch=partition.partition_epoch + 1)
                    path = znodes.state_path(changed.name, index)
                    operations.append(SetData(path, znodes.encode_state(partition), partition.partition_epoch))
            written.append((changed, partitions))
            if len(operations) >= MAX_OPERATIONS:
                await self._write_topics(operations, written)
                operations, written = [], []
        if operations:
            await self._write_topics(operations, written)

    async def _write_topics(
        self, operations: list[Operation], written: list[tuple[TopicMetadata, dict[int, PartitionMetadata]]]
    ) -> None:
        """Write changed partitions of some topics; the image gets these and nothing else of what was known before."""
        await self.write(operations)
        for topic, changed in written:
            if self._is_current(topic):
                current = self.image.topics[topic.name]
                partitions = tuple(changed.get(index, one) for index, one in enumerate(current.partitions))
                self.image.put_topic(current._replace(partitions=partitions))

    async def take_offline(self, failed: Sequence[tuple[str, int]]) -> None:
        """This broker's replicas of these partitions (topic, index) lost their log directory (KIP-112).

        Others of the ISR are elected; without any the partition has no leader. If the store cannot take the change
        (it may lie on the same disk), clients are told all the same.
        """
        # What is changed is then what the store has: states of other versions would be refused, all of them.
        await self.store.ready()
        changed = self._without_failed(failed)
        if not changed:
            return
        try:
            await self.put_partitions(changed)
        except (KafkaError, MetadataStoreError) as error:
            logger.error("the metadata store takes no note of offline partitions topics=%d: %s", len(changed), error)
            # Those that a first transaction wrote are in the image as the store has them.
            for topic in self._without_failed(failed):
                self.image.put_topic(topic)
            self.image.publish()

    def _without_failed(self, failed: Sequence[tuple[str, int]]) -> list[TopicMetadata]:
        """The topics as they are without the replicas that failed; those that have noted it already are left out."""
        changed: dict[str, list[PartitionMetadata]] = {}
        for name, index in failed:
            topic = self.image.topics.get(name)
            if topic is None or not index < len(topic.partitions):
                continue
            partition = topic.partitions[index]
            if self.broker_id in partition.replicas and self.broker_id not in partition.offline:
                partition = partition._replace(offline=(*partition.offline, self.broker_id))
                changed.setdefault(name, list(topic.partitions))[index] = self._elected(partition, False)
        return [
            self.image.topics[name]._replace(partitions=tuple(partitions)) for name, partitions in changed.items()
        ]

    async def reload(self) -> None:
        """Bring the image up to date: the outcome of a change was unknown, and the store can be read again."""
        await reload_image(self.store, self.image)
        await self.finish_deletions()

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Deletes topics; returns the errors of those that remain."""
        return await self.deletion.delete(names)

    async def finish_deletions(self) -> None:
        """Finishes the deletion of topics that a stop of the controller interrupted."""
        if self.is_active:
            await self.deletion.resume()

    async def put_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """Writes and publishes a topic's explicit configuration. Raises KafkaError."""
        changed = self.image.topics.get(topic)
        await self._put_config(znodes.topic_config_path(topic), configs)
        if changed is not None:
            self._check_current(changed)
        self.image.put_topic_config(topic, configs)
        self.image.publish()

    async def put_broker_config(self, broker_id: int | None, configs: Mapping[str, str]) -> None:
        """Writes and publishes a broker's dynamic configuration; with None the cluster-wide default."""
        await self._put_config(znodes.broker_config_path(broker_id), configs)
        self.image.put_broker_config(broker_id, configs)
        self.image.publish()

    async def _put_config(self, path: str, configs: Mapping[str, str]) -> None:
        data = znodes.encode_config(dict(configs))
        exists = await self.store.exists(path) is not None
        change = znodes.encode_config_change(path.removeprefix("/config/"))
        await self._change(
            [
                SetData(path, data) if exists else Create(path, data),
                Create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True),
                *await self._old_config_changes(),
            ]
        )

    async def _old_config_changes(self) -> list[Operation]:
        operations: list[Operation] = []
        for name in await self.store.get_children(znodes.CONFIG_CHANGES):
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            stat = await self.store.exists(path)
            if stat is not None and stat.created_ms > self._now_ms() - CONFIG_CHANGE_KEPT_MS:
                break
            operations.append(Delete(path))
        return operations

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self.resign()

    async def close(self) -> None:
        """Resigns and takes the registration back, so that nobody waits for the session to expire."""
        mine: list[Operation] = []
        self.is_active = False
        try:
            for path in (znodes.CONTROLLER, znodes.broker_path(self.broker_id)):
                stat = await self.store.exists(path)
                if stat is not None and stat.ephemeral_owner == self.store.session_id:
                    mine.append(Delete(path))
            await self.store.transaction(mine)
        except MetadataStoreError as error:
            logger.warning("could not take back the registration broker=%d: %s", self.broker_id, error)


async def _no_pause() -> None:
    pass


async def stored_cluster_id(store: MetadataStore) -> str:
    """The cluster's id in the store. Raises NoNodeError, StoreDamagedError."""
    return await read_node(store, znodes.CLUSTER_ID, lambda node: znodes.decode_cluster_id(node.data))


def new_partition(replicas: tuple[int, ...], live: Container[int], controller_epoch: int) -> PartitionMetadata:
    """A partition's first state: its live replicas are in sync and the first of them leads (-1 without any)."""
    isr = tuple(replica for replica in replicas if replica in live)
    return PartitionMetadata(isr[0] if isr else -1, 0, replicas, isr, controller_epoch)


def _creation_error(name: str, error: TransactionError) -> KafkaError:
    if isinstance(error.cause, NodeExistsError):
        return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _batches(topics: Sequence[NewTopic]) -> Iterable[list[NewTopic]]:
    batch: list[NewTopic] = []
    size = 0
    for new in topics:
        operations = 3 + 2 * len(new.topic.partitions)
        if batch and size + operations > MAX_OPERATIONS:
            yield batch
            batch, size = [], 0
        batch.append(new)
        size += operations
    if batch:
        yield batch


__all__ = ["Controller", "NewTopic", "StartError", "new_partition", "stored_cluster_id"]
