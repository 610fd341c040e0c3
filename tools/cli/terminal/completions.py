"""Values that the shell completes: names of topics and others, from the cluster that the command line selects."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from odradek.tools.kafka.topics.configs import ConfigValue

_TIMEOUT_S: Final = 2.0
"""Maximum time of a step, for which the shell does not react."""

_SAFE: Final = re.compile(r"[\w./:@][\w.:/@%+,=-]*")
"""Names that a shell does not interpret: it inserts or evaluates completions, which typer does not quote."""


def complete_topics(ctx: Any, incomplete: str) -> list[str]:
    """Return the topics whose names begin with a text."""
    return _complete(ctx, incomplete, _list_topics)


def complete_groups(ctx: Any, incomplete: str) -> list[str]:
    """Return the groups whose names begin with a text."""

    def find_names(cluster: Any) -> list[str]:
        from odradek.tools.kafka.groups.description import list_groups

        return [one.group for one in list_groups(cluster)]

    return _complete(ctx, incomplete, find_names)


def complete_users(ctx: Any, incomplete: str) -> list[str]:
    """Return the SCRAM users whose names begin with a text."""

    def find_names(cluster: Any) -> list[str]:
        from odradek.tools.kafka.security.scram_users import fetch_users

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


def complete_transactional_ids(ctx: Any, incomplete: str) -> list[str]:
    """Return the transactional ids that begin with a text."""

    def find_names(cluster: Any) -> list[str]:
        from odradek.tools.kafka.transactions import list_known_transactions

        return [one.transactional_id for one in list_known_transactions(cluster)]

    return _complete(ctx, incomplete, find_names)


def complete_config_settings(ctx: Any, incomplete: str) -> list[str]:
    """Return `name=` for each configuration of the resource on the command line that can be changed."""
    return _complete(ctx, incomplete, lambda cluster: [f"{one.name}=" for one in _fetch_configs(ctx, cluster)])


def complete_changed_configs(ctx: Any, incomplete: str) -> list[str]:
    """Return the configurations that were set for the resource on the command line."""
    return _complete(
        ctx, incomplete, lambda cluster: [one.name for one in _fetch_configs(ctx, cluster) if one.is_changed]
    )


def _fetch_configs(ctx: Any, cluster: Any) -> "list[ConfigValue]":
    from odradek.tools.kafka.topics.configs import BROKER, fetch_configs

    # The arguments before an option whose value is being completed are not parsed.
    kind, name, *_ = [str(ctx.params["kind"]), *ctx.params["names"]] if ctx.params.get("names") else ctx.args
    if kind == BROKER and not name.isdecimal():
        # All brokers together describe only what was set for them.
        name = str(cluster.node_ids()[0])
    [values] = fetch_configs(cluster, [(kind, name)]).values()
    return [one for one in values if not one.is_read_only]


def complete_topic_settings(incomplete: str) -> list[str]:
    """Return `name=` for each configuration of topics."""

    def find_names() -> list[str]:
        from odradek.log.config import LogConfig

        return [f"{name}=" for name, one in LogConfig.declared().items() if not one.internal]

    return _complete_fixed(incomplete, find_names)


def complete_profiles(incomplete: str) -> list[str]:
    """Return the names of profiles that begin with a text."""

    def find_names() -> list[str]:
        import os

        from odradek.tools.kafka.connection.profile import list_profiles

        return list_profiles(os.environ)

    return _complete_fixed(incomplete, find_names)


def complete_group_states(incomplete: str) -> list[str]:
    """Return the states of groups that begin with a text."""
    return _complete_fixed(incomplete, lambda: _find_choices("GROUP_STATES"))


def complete_group_types(incomplete: str) -> list[str]:
    """Return the types of groups that begin with a text."""
    return _complete_fixed(incomplete, lambda: _find_choices("GROUP_TYPES"))


def complete_transaction_states(incomplete: str) -> list[str]:
    """Return the states of transactions that begin with a text."""
    return _complete_fixed(incomplete, lambda: _find_choices("TRANSACTION_STATES"))


def _find_choices(name: str) -> list[str]:
    from odradek.tools.cli.terminal import choices

    return list(getattr(choices, name))


def complete_operations(incomplete: str) -> list[str]:
    """Return the operations of ACLs that begin with a text."""

    def find_names() -> list[str]:
        from odradek.protocol.access_control import Operation

        return [one.title for one in Operation if one > Operation.ANY]

    return _complete_fixed(incomplete, find_names)


def complete_formats(incomplete: str) -> list[str]:
    """Return the formats of keys and values that begin with a text."""

    def find_names() -> list[str]:
        from odradek.tools.records.decoding import FORMATS

        return list(FORMATS)

    return _complete_fixed(incomplete, find_names)


def _complete_fixed(incomplete: str, find_names: Callable[[], list[str]]) -> list[str]:
    """Return the names that begin with a text, in any case."""
    try:
        return [name for name in find_names() if name.lower().startswith(incomplete.lower()) and is_safe(name)]
    except Exception:
        # As below.
        return []


def _complete(ctx: Any, incomplete: str, find_names: Callable[[Any], list[str]]) -> list[str]:
    # Imported here because a command line that is not completed does not need them.
    import os
    from functools import partial

    from odradek.tools.kafka.cluster import Cluster
    from odradek.tools.kafka.connection.profile import find_connection
    from odradek.tools.kafka.connection.wire_client import WireClient

    given = ctx.params
    connect = partial(WireClient, timeout_s=_TIMEOUT_S, response_timeout_s=_TIMEOUT_S)
    try:
        connection = find_connection(
            given.get("bootstrap_server"), given.get("command_config"), given.get("profile"), os.environ
        )
        with Cluster(connection, connect=connect, retry_s=0) as cluster:
            return sorted(name for name in find_names(cluster) if name.startswith(incomplete) and is_safe(name))
    except Exception:
        # Nothing is completed, whatever fails: a trace would be written over the command line. The command itself
        # reports the error.
        return []


def is_safe(name: str) -> bool:
    """Return whether a shell may evaluate a name, which any client of the cluster can have chosen."""
    return _SAFE.fullmatch(name) is not None
