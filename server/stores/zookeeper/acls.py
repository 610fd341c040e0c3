"""Access to the nodes in ZooKeeper with `zookeeper.set.acl`, as Kafka's ZkData.defaultAcls."""

from typing import Any, Final

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

_OPEN_PATH: Final = "/consumers"
"""Clients of the former consumer create nodes there."""

_SENSITIVE_PATHS: Final = ("/config/users", "/config/brokers", "/delegation_token", "/odradek_scram_secret")
"""These nodes, and those below them, have credentials and secrets, which only their creator may read."""


def find_acls(path: str, *, has_acls: bool) -> list[Any]:
    """Return the ACLs of a new node; `path` is without the chroot."""
    if not has_acls or path == _OPEN_PATH:
        return list(OPEN_ACL_UNSAFE)
    if path.startswith(_SENSITIVE_PATHS):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
