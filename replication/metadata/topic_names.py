"""Valid topic names, and the names of internal topics."""

from collections.abc import Collection

from odradek.protocol.errors import ErrorCode, KafkaError

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC))
MAX_NAME_LENGTH = 249

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_internal(name: str) -> bool:
    """Return whether the topic contains state of the brokers."""
    return name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION for an invalid topic name."""
    problem = _problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def is_topic_name(name: str) -> bool:
    """Return whether the topic name is valid."""
    return _problem(name) is None


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return f"it may not be '{name}'"
    if len(name) > MAX_NAME_LENGTH:
        return f"'{name}' has more than {MAX_NAME_LENGTH} characters"
    if not _LEGAL.issuperset(name):
        return f"'{name}' has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def unify_name(name: str) -> str:
    """Return the form that colliding names share: in metric names '.' is replaced by '_'."""
    return name.replace(".", "_")


def colliding_topic(name: str, existing: Collection[str]) -> str | None:
    """Return an existing topic whose name differs from `name` only in '.' and '_'; None if there is none."""
    if "." not in name and "_" not in name:
        return None
    wanted = unify_name(name)
    for other in existing:
        if len(other) == len(name) and unify_name(other) == wanted and other != name:
            return other
    return None
