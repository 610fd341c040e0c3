"""The commands `odradek cluster start` and `odradek cluster status`.

`status` exits with 0 if the cluster is healthy, 1 if a partition is offline, under min ISR or under-replicated.
"""

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Session

EXIT_UNHEALTHY: Final = 1

commands = Commands("cluster", "Clusters of brokers.")


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
    sys.stdout.write(found.as_json() if session.output.is_json else found.as_table())
    return 0 if found.is_healthy else EXIT_UNHEALTHY
