"""One request in several versions, and the resources that requests name.

Each request names resources to which the client gets rights and others to which it does not. Of both kinds one exists
and one does not. Coordinators get producers that do not exist, so that a permitted request changes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from compat_tests.authorization.brokers import NOT_READY, UNKNOWN_ID, Broker
from odradek.protocol.access_control import ResourceType

EXISTING, ABSENT, HIDDEN, SECRET = "existing", "absent", "hidden", "secret"
TOPICS: Final = (EXISTING, ABSENT, HIDDEN, SECRET)
GROUPS: Final = ("group", "hidden-group")
IDS: Final = ("transaction", "hidden-transaction")
GRANTED: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    ResourceType.TOPIC: (EXISTING, ABSENT),
    ResourceType.GROUP: ("group", "absent-group"),
    ResourceType.TRANSACTIONAL_ID: ("transaction", "initialized"),
    ResourceType.CLUSTER: ("kafka-cluster",),
    ResourceType.DELEGATION_TOKEN: ("token",),
    ResourceType.USER: ("User:nobody",),
}

Values = Mapping[str, Any]
NO_PRODUCER: Final = {"producer_id": 4711, "producer_epoch": 0}
"""A producer that does not exist."""

COMMITTED: Final = {"partitions": [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]}


class Case(NamedTuple):
    """A request in one or several versions.

    make: returns the request; the number distinguishes the requests of one run, whose topics are granted by `topics`
    topics: returns the names of topics that the request needs, besides those that always exist
    is_answered: the request gets a response
    retried: errors of a response after which the request is repeated
    """

    api: str
    versions: tuple[int, ...]
    make: Callable[[Broker, int], Values]
    topics: Callable[[int], tuple[str, ...]] = lambda number: ()
    prepare: Callable[[Broker, int], None] = lambda broker, number: None
    is_answered: bool = True
    label: str = ""
    retried: frozenset[int] = NOT_READY


def named(**more: Any) -> list[Values]:
    """Return a row for each topic."""
    return [{"name": name, **more} for name in TOPICS]


def by_id(broker: Broker, **more: Any) -> list[Values]:
    """Return a row for each topic that has an id, and one for an unknown id."""
    known = [{"topic_id": broker.ids[name], **more} for name in (EXISTING, HIDDEN)]
    return [*known, {"topic_id": UNKNOWN_ID, **more}]


def new_topics(number: int) -> tuple[str, ...]:
    """Return the names of topics that a request creates."""
    return (f"new-{number}",)
