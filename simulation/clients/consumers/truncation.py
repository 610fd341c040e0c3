"""Detection of truncations by consumers of a cluster: OffsetForLeaderEpoch, as in librdkafka (KIP-320)."""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochRequestOffsetForLeaderTopic,
)
from odradek.simulation.clients.link import RETRIABLE, Link
from odradek.simulation.history import History, Partition, name_of


async def check_truncation(link: Link, history: History, partition: Partition, position: int, epoch: int) -> None:
    """Record in the history if the log no longer has what was read up to `position`, the last batch in `epoch`.

    A leader of an earlier epoch, which was replaced without its notice, refuses the request. Raises ConnectionLost.
    """
    row = OffsetForLeaderEpochRequestOffsetForLeaderPartition(
        partition=partition[1], current_leader_epoch=epoch, leader_epoch=epoch
    )
    topic = OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=partition[0], partitions=[row])
    answer = (await link.request(OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]))).topics[0].partitions[0]
    code, where = ErrorCode(answer.error_code), f"{name_of(partition)} after epoch {epoch} up to {position}"
    if code == ErrorCode.NONE:
        if answer.leader_epoch != epoch or answer.end_offset < position:
            history.note_odd(link.name, f"{where}: epoch {answer.leader_epoch} ends at {answer.end_offset}")
    elif code not in RETRIABLE:
        history.note_odd(link.name, f"OffsetForLeaderEpoch of {where}: {code.name}")
