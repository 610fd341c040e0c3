"""The commands `odradek acl`: ACLs of a cluster, or in the metadata store of a broker that is stopped.

The options are those of Kafka's kafka-acls.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from odradek.protocol.access_control import Operation, PatternType
from odradek.replication.metadata.acls.bindings import AclBinding, AclFilter
from odradek.server.store_tools.acl_rules import (
    AclOptions,
    check_operations,
    check_principal,
    make_creations,
    make_deletions,
    make_filters,
)
from odradek.tools.cli.groups import Commands
from odradek.tools.cli.security.store_options import StoreFile, StoreOverrides, find_store
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Session
from odradek.tools.cli.terminal.choices import unknown_choice
from odradek.tools.cli.terminal.completions import (
    complete_groups,
    complete_operations,
    complete_topics,
    complete_transactional_ids,
)
from odradek.tools.cli.terminal.output import Row, Table, count

if TYPE_CHECKING:
    from odradek.server.config import BrokerConfig

C = TypeVar("C", Operation, PatternType)

EXIT_DENIED: Final = 1
_KEYS: Final = ("permission", "operation", "principal", "host", "resource_type", "pattern_type", "name")

commands = Commands("acl", "Access control lists: what clients may do.")


def _parse_operation(text: str) -> Operation:
    return _parse_code(Operation, text)


def _parse_pattern_type(text: str) -> PatternType:
    return _parse_code(PatternType, text)


_KINDS: Final[dict[type[Any], str]] = {Operation: "operation", PatternType: "pattern type"}


def _parse_code(kind: type[C], text: str) -> C:
    try:
        code = kind.parse(str(text).strip())
    except ValueError:
        code = kind(0)
    if not code:
        raise unknown_choice(_KINDS[kind], text, [each.title for each in kind if each])
    return code


Names = list[str] | None
Topic = Annotated[
    Names, typer.Option("--topic", metavar="NAME", autocompletion=complete_topics, help="Topic of this name.")
]
Group = Annotated[
    Names, typer.Option("--group", metavar="NAME", autocompletion=complete_groups, help="Group of this name.")
]
TransactionalId = Annotated[
    Names,
    typer.Option(
        "--transactional-id", metavar="NAME", autocompletion=complete_transactional_ids, help="TransactionalId."
    ),
]
Token = Annotated[Names, typer.Option("--delegation-token", metavar="ID", help="DelegationToken.")]
UserPrincipal = Annotated[Names, typer.Option("--user-principal", metavar="NAME", help="User, for its tokens.")]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Pattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help="literal or prefixed; to list and delete also any, or match: patterns that apply to the resource.",
    ),
]
Allowed = Annotated[Names, typer.Option("--allow-principal", metavar="Type:name", help="User:* is everybody.")]
AllowedHost = Annotated[Names, typer.Option("--allow-host", metavar="ADDRESS", help="Allow from this address (*).")]
Denied = Annotated[Names, typer.Option("--deny-principal", metavar="Type:name", help="User:* is everybody.")]
DeniedHost = Annotated[Names, typer.Option("--deny-host", metavar="ADDRESS", help="Deny from this address (*).")]
Operations = Annotated[
    Names,
    typer.Option(
        "--operation", metavar="NAME", autocompletion=complete_operations, help="Such as Read (All); repeatable."
    ),
]
Producer = Annotated[bool, typer.Option("--producer", help="Write, Describe and Create on the topics.")]
Consumer = Annotated[bool, typer.Option("--consumer", help="Read and Describe on the topics, Read on the groups.")]
Idempotent = Annotated[bool, typer.Option("--idempotent", help="With --producer: IdempotentWrite on the cluster.")]


@commands.command("create", is_change=True, aliases=("add",))
def create(
    session: Session,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    delegation_token: Token = None,
    user_principal: UserPrincipal = None,
    cluster: OnCluster = False,
    resource_pattern_type: Pattern = "literal",
    allow_principal: Allowed = None,
    allow_host: AllowedHost = None,
    deny_principal: Denied = None,
    deny_host: DeniedHost = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    store: StoreFile = None,
    override: StoreOverrides = None,
) -> None:
    """Create ACLs for resources; --dry-run shows which of them exist."""
    options = AclOptions(
        topic or [],
        group or [],
        transactional_id or [],
        delegation_token or [],
        user_principal or [],
        cluster,
        _parse_pattern_type(resource_pattern_type),
        allow_principal or [],
        allow_host or [],
        deny_principal or [],
        deny_host or [],
        [_parse_operation(each) for each in operation or []],
        producer,
        consumer,
        idempotent,
    )
    added = make_creations(options)
    bindings = [AclBinding(pattern, entry) for pattern, entries in added.items() for entry in entries]
    config = find_store(store, override)
    if session.is_dry_run:
        resources = [AclFilter(pattern.resource_type, pattern.name, pattern.pattern_type) for pattern in added]
        _show(session, bindings, _find(session, config, resources))
        return
    if config is None:
        from odradek.tools.kafka.security.acls import create_acls

        create_acls(session.cluster, added)
    else:
        from odradek.server.store_tools.acls import add_acls

        add_acls(config, added)
    _show(session, bindings)


@commands.command("list")
def list_acls(
    session: Session,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    delegation_token: Token = None,
    user_principal: UserPrincipal = None,
    cluster: OnCluster = False,
    resource_pattern_type: Pattern = "literal",
    principal: Annotated[Names, typer.Option("--principal", metavar="Type:name", help="Only this one's.")] = None,
    store: StoreFile = None,
    override: StoreOverrides = None,
) -> None:
    """List ACLs, of all resources or of some."""
    options = AclOptions(
        topic or [],
        group or [],
        transactional_id or [],
        delegation_token or [],
        user_principal or [],
        cluster,
        _parse_pattern_type(resource_pattern_type),
    )
    filters = list(make_filters(options)) or [AclFilter()]
    for each in principal or []:
        check_principal(each)
    found = _find(session, find_store(store, override), filters)
    _show(session, (one for one in found if not principal or one.entry.principal in principal))


@commands.command("delete", is_destructive=True, aliases=("remove",))
def delete(
    session: Session,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    delegation_token: Token = None,
    user_principal: UserPrincipal = None,
    cluster: OnCluster = False,
    resource_pattern_type: Pattern = "literal",
    allow_principal: Allowed = None,
    allow_host: AllowedHost = None,
    deny_principal: Denied = None,
    deny_host: DeniedHost = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    force: Annotated[bool, typer.Option("--force", hidden=True, help="The same as --yes.")] = False,
    store: StoreFile = None,
    override: StoreOverrides = None,
) -> None:
    """Delete ACLs of resources; all of them if no principal is given."""
    options = AclOptions(
        topic or [],
        group or [],
        transactional_id or [],
        delegation_token or [],
        user_principal or [],
        cluster,
        _parse_pattern_type(resource_pattern_type),
        allow_principal or [],
        allow_host or [],
        deny_principal or [],
        deny_host or [],
        [_parse_operation(each) for each in operation or []],
        producer,
        consumer,
        idempotent,
    )
    filters = make_deletions(options)

    def confirm(selected: list[AclBinding]) -> bool:
        _show(session, selected)
        if selected and not force:
            session.confirm(f"Delete {count(len(selected), 'ACL')}?")
        return bool(selected) and not session.is_dry_run

    config = find_store(store, override)
    if config is not None:
        from odradek.server.store_tools.acls import remove_acls

        remove_acls(config, filters, confirm)
        return
    from odradek.tools.kafka.security.acls import delete_acls, find_acls

    if confirm(find_acls(session.cluster, filters)):
        delete_acls(session.cluster, filters)


@commands.plain_command("test")
def test(
    principal: Annotated[str, typer.Option("--principal", metavar="Type:name", help="The client, such as User:alice.")],
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The client's numeric address.")],
    operation: Annotated[
        str, typer.Option("--operation", metavar="NAME", autocompletion=complete_operations, help="Such as Read.")
    ],
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    delegation_token: Token = None,
    user_principal: UserPrincipal = None,
    cluster: OnCluster = False,
    store: StoreFile = None,
    override: StoreOverrides = None,
) -> int:
    """Show whether an operation is allowed, and the rule that decides, by the metadata store of a stopped broker.

    Exit code: 0 allowed, 1 denied.
    """
    check_principal(principal)
    options = AclOptions(
        topic or [],
        group or [],
        transactional_id or [],
        delegation_token or [],
        user_principal or [],
        cluster,
    )
    filters = list(make_filters(options))
    if len(filters) != 1:
        raise CommandError("specify one resource, such as --topic NAME", exit_code=EXIT_USAGE)
    [resource] = filters
    asked = _parse_operation(operation)
    check_operations(resource.resource_type, [asked])
    config = find_store(store, override)
    if config is None:
        raise CommandError("specify --store server.properties", exit_code=EXIT_USAGE)
    from odradek.server.store_tools.acls import explain
    from odradek.server.store_tools.errors import OpenStoreError
    from odradek.tools.cli.terminal.output import Output

    try:
        is_allowed, rule = explain(config, principal, host, asked, resource.resource_type, resource.name or "")
    except OpenStoreError:
        raise CommandError(
            "the broker is running, with its metadata store open: stop it, or look at its rules with `odradek acl list`"
        ) from None
    Output(is_json=False).write_line(f"{'allowed' if is_allowed else 'denied'}: {rule}")
    return 0 if is_allowed else EXIT_DENIED


def _find(session: Session, config: "BrokerConfig | None", filters: list[AclFilter]) -> list[AclBinding]:
    if config is None:
        from odradek.tools.kafka.security.acls import find_acls

        return find_acls(session.cluster, filters)
    from odradek.server.store_tools.acls import find_acls as find_in_store

    return find_in_store(config, filters)


def _show(session: Session, bindings: Iterable[AclBinding], existing: Collection[AclBinding] | None = None) -> None:
    """Show ACLs, and with `existing` whether they are among these."""
    rows: list[Row] = [
        (
            entry.permission.title.upper(),
            entry.operation.title,
            entry.principal,
            entry.host,
            pattern.resource_type.title,
            pattern.pattern_type.name,
            pattern.name,
            *(() if existing is None else (AclBinding(pattern, entry) in existing,)),
        )
        for pattern, entry in sorted(bindings)
    ]
    keys = _KEYS if existing is None else (*_KEYS, "exists")
    session.output.show(Table(keys, rows))
