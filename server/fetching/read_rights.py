"""The topics that a fetcher may read: decisions that a fetch session keeps until rights may have changed.

A fetch in a session may read thousands of partitions. Decisions are held by topic, for one version of the authorizer
and one client, so that a right that is revoked is missing in the next fetch.
"""

from typing import TYPE_CHECKING, Final

from odradek.protocol.errors import ErrorCode
from odradek.server.security.authorization.operations import ResourceType

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.security.authorization.rights import Rights

_SPARE: Final = 100
"""Decisions that are held in any case."""


class ReadRights:
    """The decisions of one fetcher, by topic name or id."""

    __slots__ = ("_decisions", "_key", "_metadata", "_rights")

    def __init__(self, metadata: "ClusterMetadata") -> None:
        self._metadata = metadata
        self._decisions: dict[str | bytes, bool] = {}
        self._rights: Rights | None = None
        self._key: tuple[object, ...] = ()

    def __len__(self) -> int:
        return len(self._decisions)

    def begin(self, rights: "Rights", partitions: int) -> None:
        """Begin a fetch; drop the decisions if they may have changed, or if most are about topics no longer fetched.

        partitions: the number of partitions in the session
        """
        key = rights.key
        if key != self._key or len(self._decisions) > 2 * partitions + _SPARE:
            self._decisions, self._key = {}, key
        self._rights = rights

    def find_error(self, topic: str | bytes) -> ErrorCode | None:
        """Return the error of a topic, given by name or id, that the fetcher may not read; None if it may.

        An id that is not in the metadata is unknown even if this broker has replicas of its topic: without a name there
        is no decision.
        """
        decision = self._decisions.get(topic)
        if decision is None:
            name = topic
            if isinstance(name, bytes):
                known = self._metadata.topics_by_id.get(name)
                if known is None:
                    return ErrorCode.UNKNOWN_TOPIC_ID
                name = known.name
            assert self._rights is not None
            decision = self._decisions[topic] = self._rights.allows(ResourceType.TOPIC, name)
        return None if decision else ErrorCode.TOPIC_AUTHORIZATION_FAILED
