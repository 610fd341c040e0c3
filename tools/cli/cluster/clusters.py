"""The commands `odradek cluster`.

`status` exits with 0 if the cluster is healthy, 1 if a partition is offline, under min ISR or under-replicated.
"""

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from odradek.tools.cli.cluster.features import feature_commands
from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Session
from odradek.tools.cli.terminal.output import JsonValue, Row, Table, format_uuid
from odradek.tools.kafka.connection.wire_client import Address

EXIT_UNHEALTHY: Final = 1
_METADATA_TOPIC: Final = "__cluster_metadata"
_QUORUM_KEYS: Final = (
    "replica",
    "role",
    "log_end_offset",
    "lag",
    "last_fetch_ms",
    "last_caught_up_ms",
    "directory_id",
    "endpoints",
)

commands = Commands("cluster", "Clusters of brokers.")
commands.add_group(feature_commands)


@commands.plain_command("start")
def start(
    brokers: Annotated[
        int | None, typer.Option(min=1, max=99, metavar="N", help="Number of brokers (those in the directory, or 3).")
    ] = None,
    directory: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the cluster.")] = Path("data-cluster"),
    zookeeper: Annotated[
        str | None, typer.Option(metavar="host:port", help="zookeeper.connect of a ZooKeeper that is already running.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="Port of the first broker (9092); the next has N+1; 0: any."),
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option(metavar="name=value", help="Set a property of all brokers; repeatable.")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Lowest level logged.")
    ] = "info",
) -> int:
    """Run a cluster on this machine: broker processes, and a ZooKeeper server unless an address is given.

    It stops on Ctrl-C or SIGTERM. A later start continues with the same data, ids and ports.
    """
    from odradek.server.cluster_tools.start import InvalidStartError, StartFailedError, start_cluster

    try:
        return start_cluster(brokers, directory, zookeeper, port, override or [], log_level)
    except InvalidStartError as error:
        raise CommandError(*error.args, exit_code=EXIT_USAGE) from None
    except StartFailedError as error:
        raise CommandError(str(error)) from None


@commands.command("status")
def status(session: Session) -> int:
    """Show brokers, controller, and partitions that are offline, under min ISR or under-replicated.

    Exit code: 0 without such partitions, 1 with any, 3 if no broker answers.
    """
    from odradek.tools.kafka.status import fetch_status

    found = fetch_status(session.cluster.any_broker())
    if session.output.is_json:
        sys.stdout.write(found.as_json())
    else:
        for line in found.as_table().removesuffix("\n").split("\n"):
            session.output.write_line(line)
    return 0 if found.is_healthy else EXIT_UNHEALTHY


@commands.command("describe")
def describe(session: Session) -> None:
    """Show id, controller and brokers of the cluster, and the number of its topics and partitions."""
    from odradek.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
    from odradek.tools.kafka.cluster import check

    described = session.cluster.ask(DescribeClusterRequest(), DescribeClusterResponse)
    check(described.error_code, described.error_message)
    topics = session.cluster.fetch_metadata().topics
    fields: dict[str, JsonValue] = {
        "cluster_id": described.cluster_id,
        "controller": described.controller_id if described.controller_id >= 0 else None,
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
    }
    rows = sorted((one.broker_id, one.host, one.port, one.rack) for one in described.brokers)
    brokers = Table(("broker", "host", "port", "rack"), rows)
    session.output.show_all({**fields, "brokers": brokers.as_json()}, fields, brokers)


@commands.command("quorum")
def show_quorum(session: Session) -> None:
    """Show the quorum that stores the metadata: leader, voters and observers with their lag, directories, endpoints."""
    from odradek.protocol.messages import describe_quorum as messages
    from odradek.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
    from odradek.tools.kafka.cluster import check

    request = messages.DescribeQuorumRequest(
        topics=[
            messages.DescribeQuorumRequestTopicData(
                topic_name=_METADATA_TOPIC,
                partitions=[messages.DescribeQuorumRequestPartitionData(partition_index=0)],
            )
        ]
    )
    response = session.cluster.ask_controller(request, messages.DescribeQuorumResponse)
    check(response.error_code, response.error_message)
    [state] = [partition for topic in response.topics for partition in topic.partitions]
    check(state.error_code, state.error_message, "quorum")
    endpoints = {
        node.node_id: [f"{one.name}://{Address(one.host, one.port)}" for one in node.listeners]
        for node in response.nodes
    }
    ends = {one.replica_id: one.log_end_offset for one in state.current_voters}
    leader_end = ends.get(state.leader_id, state.high_watermark)
    rows: list[Row] = [
        (
            one.replica_id,
            "leader" if one.replica_id == state.leader_id else role,
            one.log_end_offset,
            max(leader_end - one.log_end_offset, 0),
            one.last_fetch_timestamp if one.last_fetch_timestamp >= 0 else None,
            one.last_caught_up_timestamp if one.last_caught_up_timestamp >= 0 else None,
            format_uuid(one.replica_directory_id) if any(one.replica_directory_id) else None,
            endpoints.get(one.replica_id, []),
        )
        for role, replicas in (("voter", state.current_voters), ("observer", state.observers))
        for one in replicas
    ]
    described = session.cluster.ask(DescribeClusterRequest(), DescribeClusterResponse)
    check(described.error_code, described.error_message)
    fields: dict[str, JsonValue] = {
        "cluster_id": described.cluster_id,
        "leader": state.leader_id,
        "leader_epoch": state.leader_epoch,
        "high_watermark": state.high_watermark,
    }
    replicas = Table(_QUORUM_KEYS, rows)
    session.output.show_all({**fields, "replicas": replicas.as_json()}, fields, replicas)
