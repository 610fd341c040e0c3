"""Values that the shell completes: names of topics and others, from the cluster that the command line selects."""

from collections.abc import Callable
from typing import Any, Final

_UNSAFE: Final = frozenset("\\\"'`$")
"""Characters with which a name may be a command when zsh evaluates the completions; typer does not escape them all."""


def complete_topics(ctx: Any, incomplete: str) -> list[str]:
    """Return the topics whose names begin with a text."""
    return _complete(ctx, incomplete, _list_topics)


def complete_groups(ctx: Any, incomplete: str) -> list[str]:
    """Return the groups whose names begin with a text."""

    def find_names(cluster: Any) -> list[str]:
        from odradek.tools.kafka.groups import list_groups

        return [one.group for one in list_groups(cluster)]

    return _complete(ctx, incomplete, find_names)


def complete_users(ctx: Any, incomplete: str) -> list[str]:
    """Return the SCRAM users whose names begin with a text."""

    def find_names(cluster: Any) -> list[str]:
        from odradek.tools.kafka.scram_users import fetch_users

        return list(fetch_users(cluster))

    return _complete(ctx, incomplete, find_names)


def complete_brokers(ctx: Any, incomplete: str) -> list[str]:
    """Return the ids of brokers that begin with a text."""
    return _complete(ctx, incomplete, lambda cluster: [str(each) for each in cluster.node_ids()])


def complete_config_names(ctx: Any, incomplete: str) -> list[str]:
    """Return the resources of the type on the command line whose names begin with a text."""
    kind = ctx.params.get("kind")

    def find_names(cluster: Any) -> list[str]:
        if kind == "topic":
            return _list_topics(cluster)
        return [*map(str, cluster.node_ids()), "default"] if kind in ("broker", "broker-logger") else []

    return _complete(ctx, incomplete, find_names)


def _list_topics(cluster: Any) -> list[str]:
    return [topic.name or "" for topic in cluster.fetch_topics()]


def _complete(ctx: Any, incomplete: str, find_names: Callable[[Any], list[str]]) -> list[str]:
    # Imported here because a command line that is not completed does not need them.
    import os

    from odradek.tools.kafka.cluster import Cluster, RequestError
    from odradek.tools.kafka.connection_errors import NoResponseError
    from odradek.tools.kafka.profile import ProfileError, find_connection

    given = ctx.params
    try:
        connection = find_connection(
            given.get("bootstrap_server"), given.get("command_config"), given.get("profile"), os.environ
        )
        with Cluster(connection) as cluster:
            return sorted(name for name in find_names(cluster) if name.startswith(incomplete) and is_safe(name))
    except (ProfileError, NoResponseError, RequestError):
        # Nothing is completed; the command itself reports the error.
        return []


def is_safe(name: str) -> bool:
    """Return whether a shell may evaluate a name, which any client of the cluster can have chosen."""
    return name.isprintable() and _UNSAFE.isdisjoint(name)
