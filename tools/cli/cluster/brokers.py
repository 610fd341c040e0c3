"""The commands `odradek broker`."""

from collections import Counter
from typing import Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import Session
from odradek.tools.cli.terminal.completions import complete_brokers
from odradek.tools.cli.terminal.output import JsonValue, Row, Table
from odradek.tools.kafka.cluster import RequestError, check

_BROKER_KEYS: Final = ("broker", "host", "port", "rack", "controller", "fenced", "leaders", "replicas")
_DISK_KEYS: Final = ("broker", "log_dir", "state", "total_bytes", "usable_bytes", "replicas", "size_bytes")
_REPLICA_KEYS: Final = ("broker", "log_dir", "topic", "partition", "size_bytes", "lag", "future")
_CONFIG_KEYS: Final = ("name", "value", "source", "default")
_HIDDEN: Final = "[hidden]"

commands = Commands("broker", "Brokers.")

BrokerId = Annotated[
    int, typer.Argument(metavar="ID", min=0, autocompletion=complete_brokers, help="Id of the broker.")
]
BrokerIds = Annotated[
    list[int] | None, typer.Argument(metavar="ID", autocompletion=complete_brokers, help="Ids of brokers (all).")
]


@commands.command("list")
def list_brokers(session: Session) -> None:
    """List the brokers with the number of their replicas; a terminal shows fenced ones in red."""
    session.output.show(Table(_BROKER_KEYS, _fetch_rows(session), is_marked=lambda row: row[5] is True))


@commands.command("describe")
def describe(session: Session, broker: BrokerId) -> None:
    """Show a broker with its log directories, and the configurations that were set for it."""
    from odradek.tools.kafka.topics.configs import BROKER, fetch_configs

    session.cluster.broker(broker)  # raises an error with the ids of the live brokers
    [row] = [row for row in _fetch_rows(session) if row[0] == broker]
    fields: dict[str, JsonValue] = dict(zip(_BROKER_KEYS, row, strict=True))
    resource = (BROKER, str(broker))
    configs = Table(
        _CONFIG_KEYS,
        [
            (one.name, _HIDDEN if one.is_sensitive else one.value, one.source, one.default)
            for one in fetch_configs(session.cluster, [resource])[resource]
            if one.is_changed
        ],
    )
    disks = _make_disks(session, [broker])
    document = {**fields, "log_dirs": disks.as_json(), "configs": configs.as_json()}
    session.output.show_all(document, fields, disks, configs)


@commands.command("disks")
def show_disks(
    session: Session,
    brokers: BrokerIds = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="List the replicas in the log directories.")] = False,
) -> int:
    """Show the log directories of brokers, with their disks and replicas; a terminal shows failed ones in red."""
    from odradek.tools.kafka.topics.log_dirs import fetch_log_dirs

    problems: list[str] = []
    if not replicas:
        session.output.show(_make_disks(session, brokers, problems))
        return session.report_problems(problems)
    rows: list[Row] = [
        (one.broker, one.log_dir, one.topic, one.partition, one.size_bytes, one.lag, one.is_future)
        for log_dir in fetch_log_dirs(session.cluster, brokers, problems=problems)
        for one in log_dir.replicas
    ]
    session.output.show(Table(_REPLICA_KEYS, rows))
    return session.report_problems(problems)


@commands.command("apis")
def show_apis(session: Session, broker: BrokerId) -> None:
    """Show the APIs that a broker serves, with their versions."""
    from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
    from odradek.tools.kafka.api_names import name_api

    response = session.cluster.broker(broker).send(ApiVersionsRequest(), ApiVersionsResponse, 0)
    check(response.error_code)
    rows = sorted((one.api_key, name_api(one.api_key), one.min_version, one.max_version) for one in response.api_keys)
    session.output.show(Table(("key", "api", "first_version", "last_version"), rows))


def _fetch_rows(session: Session) -> list[Row]:
    from odradek.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

    request = DescribeClusterRequest(include_fenced_brokers=True)
    response = session.cluster.ask(request, DescribeClusterResponse)
    check(response.error_code, response.error_message)
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    for topic in session.cluster.fetch_metadata().topics:
        for partition in topic.partitions:
            leaders[partition.leader_id] += 1
            replicas.update(partition.replica_nodes)
    return [
        (
            one.broker_id,
            one.host,
            one.port,
            one.rack,
            one.broker_id == response.controller_id,
            one.is_fenced,
            leaders[one.broker_id],
            replicas[one.broker_id],
        )
        for one in sorted(response.brokers, key=lambda one: one.broker_id)
    ]


def _make_disks(session: Session, brokers: list[int] | None, problems: list[str] | None = None) -> Table:
    from odradek.tools.kafka.topics.log_dirs import fetch_log_dirs

    found = fetch_log_dirs(session.cluster, brokers, problems=problems)
    if not found and brokers and not problems:
        raise RequestError("CLUSTER_AUTHORIZATION_FAILED", "this client must not describe the cluster")
    rows: list[Row] = [
        (
            one.broker,
            one.path,
            one.error or ("cordoned" if one.is_cordoned else "online"),
            one.total_bytes,
            one.usable_bytes,
            len(one.replicas),
            sum(replica.size_bytes for replica in one.replicas),
        )
        for one in found
    ]
    return Table(_DISK_KEYS, rows, is_marked=lambda row: row[2] != "online")
