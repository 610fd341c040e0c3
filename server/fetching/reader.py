"""The client that fetches: a consumer, a follower, or a debugging client."""

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.replication.metadata.image import NO_BROKER_EPOCH

if TYPE_CHECKING:
    from odradek.protocol.messages.fetch import FetchRequest
    from odradek.server.config import BrokerConfig

FOLLOWERS_READABLE_SINCE: Final = 11
REPLICA_STATE_SINCE: Final = 15
CONSUMER: Final = -1

_FOLLOWER_READERS: Final = 64


class FetchReader(NamedTuple):
    """The client that fetches, and the records that it may read.

    isolation_level: None for replicas and debugging clients, which read up to the log end
    leader_only: only the leader serves the fetch; otherwise followers do as well, up to their high watermarks
    follower: the broker id of a follower; -1 for other clients
    broker_epoch: of the follower's registration; -1 if unknown
    rack, listener: of a consumer, if it is to be sent to a follower in its rack (KIP-392)
    """

    isolation_level: int | None
    leader_only: bool
    follower: int = -1
    broker_epoch: int = -1
    rack: str = ""
    listener: str = ""


_DEBUGGING_READER: Final = FetchReader(None, leader_only=False)


def find_reader(request: "FetchRequest", version: int, config: "BrokerConfig", listener_name: str) -> FetchReader:
    """Return the reader of a request."""
    replica_id = request.replica_id if version < REPLICA_STATE_SINCE else request.replica_state.replica_id
    if replica_id != CONSUMER:
        if replica_id < 0:
            return _DEBUGGING_READER
        broker_epoch = NO_BROKER_EPOCH if version < REPLICA_STATE_SINCE else request.replica_state.replica_epoch
        return _make_follower_reader(replica_id, broker_epoch)
    leader_only = version < FOLLOWERS_READABLE_SINCE
    if not leader_only and request.rack_id and config.selects_replicas_by_rack:
        return FetchReader(request.isolation_level, leader_only=False, rack=request.rack_id, listener=listener_name)
    return _make_reader(request.isolation_level, leader_only)


@cache
def _make_reader(isolation_level: int, leader_only: bool) -> FetchReader:
    """Return one shared reader for all consumers of a kind."""
    return FetchReader(isolation_level, leader_only)


@lru_cache(_FOLLOWER_READERS)
def _make_follower_reader(replica_id: int, broker_epoch: int) -> FetchReader:
    return FetchReader(None, leader_only=True, follower=replica_id, broker_epoch=broker_epoch)
