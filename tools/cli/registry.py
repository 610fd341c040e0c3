"""The list of commands. To add one, add a line to COMMANDS; its module needs an attribute `commands: Commands`."""

from typing import Final, NamedTuple


class CommandModule(NamedTuple):
    """A command, or a group of commands.

    name: the first word after `odradek`
    module: imported only for this command
    help: one line of `odradek --help`
    is_program: the module has a function `main(arguments)` that parses the whole command line itself
    """

    name: str
    module: str
    help: str
    is_program: bool = False


COMMANDS: Final = (
    CommandModule("start", "odradek.server.cli", "Start a broker.", is_program=True),
    CommandModule("topic", "odradek.tools.cli.cluster.topics", "List, describe, create, alter and delete topics."),
    CommandModule(
        "partition",
        "odradek.tools.cli.cluster.partitions",
        "Partitions: offsets, leaders, reassignment, deletion of records.",
    ),
    CommandModule(
        "group", "odradek.tools.cli.clients.consumer_groups", "Consumer groups: members, lag, offsets, reset."
    ),
    CommandModule("record", "odradek.tools.cli.clients.records", "Consume and produce records."),
    CommandModule(
        "config", "odradek.tools.cli.cluster.configs", "List, describe and alter configurations; show properties."
    ),
    CommandModule("broker", "odradek.tools.cli.cluster.brokers", "Brokers: disks, configurations, APIs."),
    CommandModule(
        "cluster", "odradek.tools.cli.cluster.clusters", "State, features and quorum; run one on this machine."
    ),
    CommandModule(
        "transaction", "odradek.tools.cli.clients.transactions", "Transactions and producers; abort hanging ones."
    ),
    CommandModule("log", "odradek.tools.cli.logs", "Dump and verify log directories offline."),
    CommandModule("console", "odradek.tools.cli.web_console", "Serve a web console for a cluster."),
    CommandModule("doctor", "odradek.tools.cli.doctor", "Check a running cluster and its machines; show what to fix."),
    CommandModule("user", "odradek.tools.cli.security.users", "SCRAM users, with whose passwords clients connect."),
    CommandModule("acl", "odradek.tools.cli.security.acls", "Access control lists: what clients may do."),
    CommandModule("quota", "odradek.tools.cli.clients.quotas", "Quotas of users, clients and addresses."),
    CommandModule("token", "odradek.tools.cli.security.tokens", "Delegation tokens."),
    CommandModule("tls", "odradek.tools.cli.security.certificates", "Make certificates for tests."),
    CommandModule(
        "pipeline", "odradek.tools.cli.pipelines", "Check, run and manage a pipeline on Spark.", is_program=True
    ),
)
