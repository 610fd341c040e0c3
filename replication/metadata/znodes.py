"""Kafka 3.9's layout of the metadata store: paths, and the JSON in the nodes.

It contains the nodes that this package writes. Names in paths are percent-encoded, and numbers are encoded as strings,
if Kafka does so. Decoders raise ValueError or KeyError for invalid data.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Generator, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from odradek.protocol.batches.streaming import run_steps
from odradek.replication.metadata.image import SECURITY_PROTOCOL_IDS, BrokerMetadata, Endpoint, PartitionMetadata

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"
CLIENT_METRICS_CHANGES = "/odradek_client_metrics_changes"
"""Not Kafka's: notices of changed subscriptions of client metrics. Brokers of Kafka 3.9 in the same cluster would stop
at the first notice of an unknown type in CONFIG_CHANGES."""
LOG_DIR_EVENTS = "/log_dir_event_notification"
ISR_CHANGES = "/isr_change_notification"
ADOPTION = "/odradek_adoption"
"""Not Kafka's: this node exists from the creation of a store until all topics of the log directories are adopted."""
RESTARTS = "/odradek_restarts"
"""Not Kafka's: a child for each broker that has registered since the controller last followed the registrations, or in
a new session of its process. Its data states how the broker's log relates to that of its earlier registration
(`encode_restart`), and the data of this node is the epoch of the last controller."""
DEFAULT_ENTITY = "<default>"

_PARTITIONS_PER_STEP: Final = 500
"""Partitions of a topic's node that are encoded in one step, in less than 1 ms."""

PERSISTENT_PATHS = (
    BROKER_IDS,
    TOPICS,
    DELETE_TOPICS,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    CONFIG_CHANGES,
    "/cluster",
)
SHARED_PATHS = (
    BROKER_SEQUENCE,
    "/config/clients",
    "/config/ips",
    "/config/users",
    "/consumers",
    "/isr_change_notification",
    # Without data until a block is reserved: Kafka's controller cannot decode empty data.
    "/latest_producer_id_block",
    LOG_DIR_EVENTS,
    CLIENT_METRICS_CHANGES,
)
"""Further nodes of Kafka's layout, and one of Odradek's, in a store that several brokers share."""


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode(data: bytes | None) -> dict[str, Any]:
    """Decode a node's JSON object. Raises ValueError without its content, which may be a secret."""
    try:
        value = json.loads(data or b"")
    except UnicodeDecodeError as error:
        raise ValueError(f"not {error.encoding}: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object but {type(value).__name__}")
    return value


def uuid_text(uuid: bytes) -> str:
    """Format a UUID as Kafka does: base64url without padding, 22 characters."""
    return urlsafe_b64encode(uuid).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """Parse a UUID in Kafka's format. Raises ValueError."""
    uuid = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(uuid) != 16:
        raise ValueError(f"not a UUID: {text!r}")
    return uuid


def restart_path(broker_id: int) -> str:
    """Return the node that exists from a broker's registration until the controller has followed it."""
    return f"{RESTARTS}/{broker_id}"


class Restart(IntEnum):
    """State of the logs of a broker that registers, compared with what it acknowledged before; the worst first.

    LOST: the broker is another process, and logs were lost with a disk
    LOSSY: the broker is another process, and its logs may lack the last records
    CONTINUED: the broker is the same process in a new session, and its logs lack nothing

    A clean stop does not prove that nothing is lacking: the disk of another run may have been mounted since.
    """

    LOST = 0
    LOSSY = 1
    CONTINUED = 2


class RegistrationMark(NamedTuple):
    """The content of a mark. first_epoch: of the first registration of a process that continued; otherwise -1."""

    restart: Restart
    first_epoch: int = -1


def encode_restart(mark: RegistrationMark) -> bytes:
    return encode({"version": 1, "restart": mark.restart.name.lower(), "first_epoch": mark.first_epoch})


def decode_restart(data: bytes | None) -> RegistrationMark:
    """Decode the data of a mark; LOSSY if it is unknown."""
    try:
        fields = decode(data)
        mark = RegistrationMark(Restart[str(fields["restart"]).upper()], int(fields["first_epoch"]))
    except (ValueError, KeyError, TypeError):
        return RegistrationMark(Restart.LOSSY)
    return RegistrationMark(Restart.LOSSY) if mark.restart is Restart.CONTINUED and mark.first_epoch < 0 else mark


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def deletion_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{quote(topic, safe='')}"


def broker_config_path(broker_id: int | None) -> str:
    return f"{BROKER_CONFIGS}/{DEFAULT_ENTITY if broker_id is None else broker_id}"


def topic_of_config(node_name: str) -> str:
    return unquote(node_name)


def broker_of_config(node_name: str) -> int | None:
    return None if node_name == DEFAULT_ENTITY else int(node_name)


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes | None) -> str:
    return str(decode(data)["id"])


def encode_controller(broker_id: int, now_ms: int) -> bytes:
    return encode({"version": 2, "brokerid": broker_id, "timestamp": str(now_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes | None) -> int:
    return int(decode(data)["brokerid"])


def encode_broker(broker: BrokerMetadata, now_ms: int) -> bytes:
    plaintext = next((e for e in broker.endpoints if e.security_protocol == "PLAINTEXT"), None)
    value: dict[str, Any] = {
        "features": {},
        "listener_security_protocol_map": {e.listener: e.security_protocol for e in broker.endpoints},
        "endpoints": [_endpoint_text(e) for e in broker.endpoints],
        "jmx_port": -1,
        "port": plaintext.port if plaintext else -1,
        "host": plaintext.host if plaintext else None,
        "version": 5,
        "timestamp": str(now_ms),
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    return encode(value)


def decode_broker(broker_id: int, data: bytes | None, epoch: int) -> BrokerMetadata:
    value = decode(data)
    protocols = value.get("listener_security_protocol_map", {})
    endpoints = tuple(_parse_endpoint(text, protocols) for text in value["endpoints"])
    return BrokerMetadata(broker_id, endpoints, value.get("rack"), epoch)


def _endpoint_text(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener}://{host}:{endpoint.port}"


def _parse_endpoint(text: str, protocols: dict[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    protocol = protocols.get(listener, listener)
    if protocol not in SECURITY_PROTOCOL_IDS:
        raise ValueError(f"unknown security protocol {protocol!r}")
    return Endpoint(listener, protocol, host, int(port))


class TopicAssignment(NamedTuple):
    """The content of a topic's node: its id (None in old layouts) and the replicas of each partition."""

    topic_id: bytes | None
    replicas: dict[int, tuple[int, ...]]
    adding: dict[int, tuple[int, ...]]
    removing: dict[int, tuple[int, ...]]


def encode_topic(topic_id: bytes, partitions: tuple[PartitionMetadata, ...]) -> bytes:
    """Encode a topic's node, at once."""
    return run_steps(encode_topic_in_steps(topic_id, partitions))


def encode_topic_in_steps(
    topic_id: bytes, partitions: Iterable[PartitionMetadata]
) -> Generator[None, None, bytes]:
    """Encode a topic's node, which contains the replicas of all its partitions, in steps."""
    replicas: list[bytes] = []
    adding: list[bytes] = []
    removing: list[bytes] = []
    indexed = enumerate(partitions)
    while some := list(islice(indexed, _PARTITIONS_PER_STEP)):
        replicas.append(_encode_members({index: one.replicas for index, one in some}))
        adding.append(_encode_members({index: one.adding for index, one in some if one.adding}))
        removing.append(_encode_members({index: one.removing for index, one in some if one.removing}))
        yield
    return b'{"partitions":{%b},"topic_id":%b,"adding_replicas":{%b},"removing_replicas":{%b},"version":3}' % (
        b",".join(replicas),
        encode(uuid_text(topic_id)),
        b",".join(filter(None, adding)),
        b",".join(filter(None, removing)),
    )


def _encode_members(replicas: Mapping[int, Sequence[int]]) -> bytes:
    """Encode the members of a JSON object, without its braces."""
    return encode(replicas)[1:-1]


def decode_topic(data: bytes | None) -> TopicAssignment:
    value = decode(data)
    text = value.get("topic_id")
    return TopicAssignment(
        uuid_bytes(text) if text else None,
        _by_partition(value["partitions"]),
        _by_partition(value.get("adding_replicas", {})),
        _by_partition(value.get("removing_replicas", {})),
    )


def _by_partition(value: dict[str, list[int]]) -> dict[int, tuple[int, ...]]:
    return {int(partition): tuple(replicas) for partition, replicas in value.items()}


def encode_state(partition: PartitionMetadata) -> bytes:
    """Encode a partition's state node. The result is cached, because most partitions of a topic have the same."""
    return _encode_state(
        partition.controller_epoch,
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        partition.leader_recovery_state,
    )


@lru_cache(maxsize=1024)
def _encode_state(
    controller_epoch: int, leader: int, leader_epoch: int, isr: tuple[int, ...], leader_recovery_state: int
) -> bytes:
    value: dict[str, Any] = {
        "controller_epoch": controller_epoch,
        "leader": leader,
        "version": 1,
        "leader_epoch": leader_epoch,
        "isr": list(isr),
    }
    if leader_recovery_state:
        value["leader_recovery_state"] = leader_recovery_state
    return encode(value)


def decode_state(
    data: bytes | None, version: int, topic: TopicAssignment, partition: int
) -> PartitionMetadata:
    """Decode a partition's metadata from its state node, with the node's version, and its topic's node."""
    value = decode(data)
    return PartitionMetadata(
        leader=int(value["leader"]),
        leader_epoch=int(value["leader_epoch"]),
        replicas=topic.replicas[partition],
        isr=tuple(value["isr"]),
        controller_epoch=int(value["controller_epoch"]),
        partition_epoch=version,
        leader_recovery_state=int(value.get("leader_recovery_state", 0)),
        adding=topic.adding.get(partition, ()),
        removing=topic.removing.get(partition, ()),
    )


def encode_reassignments(targets: dict[tuple[str, int], tuple[int, ...]]) -> bytes:
    """Encode an operator's request to reassign partitions: the target of each (topic, index)."""
    rows = [
        {"topic": topic, "partition": index, "replicas": list(replicas)} for (topic, index), replicas in targets.items()
    ]
    return encode({"version": 1, "partitions": rows})


def decode_reassignments(data: bytes | None) -> dict[tuple[str, int], tuple[int, ...]]:
    return {
        (str(row["topic"]), int(row["partition"])): tuple(int(replica) for replica in row["replicas"])
        for row in decode(data)["partitions"]
    }


def decode_partitions(data: bytes | None) -> list[tuple[str, int]]:
    """Decode an operator's request to elect preferred leaders."""
    return [(str(row["topic"]), int(row["partition"])) for row in decode(data)["partitions"]]


def encode_config(configs: dict[str, str]) -> bytes:
    return encode({"version": 1, "config": configs})


def decode_config(data: bytes | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in decode(data).get("config", {}).items()}


def encode_log_dir_event(broker_id: int) -> bytes:
    """Encode the notice that a log directory of a broker failed."""
    return encode({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes | None) -> int:
    """Return the id of the broker of which a log directory failed."""
    return int(decode(data)["broker"])


def decode_isr_change(data: bytes | None) -> list[tuple[str, int]]:
    """Return the partitions whose ISR a broker of an old version changed."""
    return [(str(row["topic"]), int(row["partition"])) for row in decode(data)["partitions"]]


def encode_config_change(entity_path: str) -> bytes:
    return encode({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes | None) -> str:
    """Return the entity path, such as `topics/t`."""
    entity_path = str(decode(data)["entity_path"])
    # The store would refuse to read such a path, and the notices after this one would not be followed.
    if "\0" in entity_path or not {"", ".", ".."}.isdisjoint(entity_path.split("/")):
        raise ValueError(f"not the path of an entity: {entity_path!r}")
    kind, _, name = entity_path.partition("/")
    if kind == "brokers":
        broker_of_config(name)
    return entity_path
