"""The commands `odradek acl add`, `list`, `remove` and `test`, on the metadata store of a broker that is stopped.

Options are those of Kafka's kafka-acls. With `zookeeper.connect` the brokers of the cluster may run, and apply a change
at once. The first ACL can be added before the first start. Exit codes: 0; 1 if the store cannot be used, or `test`
finds that the operation is denied; 2 for an invalid command line or configuration.
"""

import argparse
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.acl_changes import AclChanges
from odradek.replication.controller.events import EventLoop
from odradek.replication.controller.registration import StartError
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import (
    WILDCARD,
    AclBinding,
    AclEntry,
    AclFilter,
    ResourcePattern,
)
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError, Waiter
from odradek.replication.pauses import no_pause
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.security.authorization.acl_authorizer import make_authorizer
from odradek.server.security.authorization.operations import CLUSTER_NAME, SUPPORTED_OPERATIONS
from odradek.server.security.principal import parse_principal
from odradek.server.store_tools.store import UsageError, add_config_arguments, fail, load_given_config, run_with_store
from odradek.server.stores.sqlite_file import StoreLockedError

C = TypeVar("C", Operation, PatternType)

EXIT_DENIED: Final = 1

_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
"""The resource types of the options that name resources."""

_PRODUCER: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}
"""The operations that --producer and --consumer stand for."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `odradek acl`."""
    commands = parser.add_subparsers(dest="acl_command", required=True, metavar="COMMAND")
    add = commands.add_parser("add", help="add ACLs", description="Add ACLs for resources.")
    remove = commands.add_parser(
        "remove", help="remove ACLs", description="Remove ACLs of resources; all of them if no principal is given."
    )
    for command in (add, remove):
        _add_rule_options(command)
    remove.add_argument("--force", action="store_true", help="do not ask for confirmation")
    listing = commands.add_parser("list", help="list ACLs", description="List ACLs, of all resources or of some.")
    listing.add_argument("--principal", action="append", default=[], metavar="Type:name", help="only this principal's")
    test = commands.add_parser(
        "test",
        help="show whether an operation is allowed, and why",
        description="Show whether an operation is allowed, and the rule that decides. Exit code: 0 allowed, 1 denied.",
    )
    test.add_argument("--principal", required=True, metavar="Type:name", help="the client, such as User:alice")
    test.add_argument("--host", required=True, metavar="ADDRESS", help="the client's numeric address")
    test.add_argument("--operation", required=True, type=_parse_operation, metavar="NAME", help="such as Read")
    for command in (add, listing, remove, test):
        _add_resource_options(command)
        if command is not test:
            command.add_argument(
                "--resource-pattern-type",
                type=_parse_pattern_type,
                default=PatternType.LITERAL,
                metavar="TYPE",
                help="literal (the default) or prefixed; to list and remove also any, or match: patterns that apply to "
                "the resource",
            )
        add_config_arguments(command)


def _add_rule_options(command: argparse.ArgumentParser) -> None:
    for permission in ("allow", "deny"):
        command.add_argument(
            f"--{permission}-principal", action="append", default=[], metavar="Type:name", help="User:* is everybody"
        )
        command.add_argument(
            f"--{permission}-host", action="append", default=[], metavar="ADDRESS", help="from this address (*)"
        )
    command.add_argument(
        "--operation", action="append", type=_parse_operation, metavar="NAME", help="such as Read (All); repeatable"
    )
    command.add_argument("--producer", action="store_true", help="Write, Describe and Create on the topics")
    command.add_argument("--consumer", action="store_true", help="Read and Describe on the topics, Read on the groups")
    command.add_argument("--idempotent", action="store_true", help="with --producer: IdempotentWrite on the cluster")


def _add_resource_options(command: argparse.ArgumentParser) -> None:
    for name, resource_type in _RESOURCES.items():
        what = resource_type.title
        command.add_argument(
            f"--{name.replace('_', '-')}", action="append", default=[], metavar="NAME", help=f"{what} of this name"
        )
    command.add_argument("--cluster", action="store_true", help="the cluster")


def run_command(options: argparse.Namespace) -> int:
    """Run a command; return the exit code. Raises UsageError."""
    work = {"add": _add, "list": _list, "remove": _remove, "test": _test}[options.acl_command](options)
    config = load_given_config(options)
    try:
        return run_with_store(config, lambda store, environment: _with_acls(store, environment, config, work))
    except StoreLockedError:
        return fail("the broker is running, with its metadata store open: stop it, or use kafka-acls.sh")
    except (MetadataStoreError, StartError, KafkaError) as error:
        return fail(str(error))


_Command = Callable[[AclChanges, BrokerConfig], Coroutine[Any, Any, int]]


def _add(options: argparse.Namespace) -> _Command:
    if options.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UsageError("--resource-pattern-type must be literal or prefixed to add ACLs")
    rules = _make_rules(options)
    if not all(rules.values()):
        raise UsageError("specify --allow-principal or --deny-principal")
    added = {
        ResourcePattern(one.resource_type, one.name or "", one.pattern_type): entries for one, entries in rules.items()
    }

    async def run(acls: AclChanges, config: BrokerConfig) -> int:
        for pattern in added:
            acls.check_name(pattern.name)
        for error in (await acls.create(added)).values():
            raise error
        _print_all(AclBinding(pattern, entry) for pattern in added for entry in added[pattern])
        return 0

    return run


def _remove(options: argparse.Namespace) -> _Command:
    filters: list[AclFilter] = []
    for one, entries in _make_rules(options).items():
        filters += [
            one._replace(principal=who, host=host, operation=operation, permission=permission)
            for who, host, operation, permission in sorted(entries)
        ] or [one]

    async def run(acls: AclChanges, config: BrokerConfig) -> int:
        selected = [one for one in _list_bindings(acls) if any(_matches(one, each) for each in filters)]
        _print_all(selected)
        if selected and not options.force:
            sys.stdout.write(f"Remove {len(selected)} ACLs? (y/n) ")
            sys.stdout.flush()
            if sys.stdin.readline().strip().lower() != "y":
                return 0
        for result in await acls.delete(filters):
            if result.error is not None:
                raise result.error
        return 0

    return run


def _list(options: argparse.Namespace) -> _Command:
    filters = list(_make_filters(options)) or [AclFilter()]
    for principal in options.principal:
        _check_principal(principal)

    async def run(acls: AclChanges, config: BrokerConfig) -> int:
        _print_all(
            one
            for one in _list_bindings(acls)
            if any(_matches(one, each) for each in filters)
            and (not options.principal or one.entry.principal in options.principal)
        )
        return 0

    return run


def _test(options: argparse.Namespace) -> _Command:
    _check_principal(options.principal)
    options.resource_pattern_type = PatternType.LITERAL
    filters = list(_make_filters(options))
    if len(filters) != 1:
        raise UsageError("specify one resource, such as --topic NAME")
    [resource] = filters
    _check_operations(resource.resource_type, [options.operation])

    async def run(acls: AclChanges, config: BrokerConfig) -> int:
        if not config.authorizer_class_name:
            sys.stdout.write("allowed: every operation is, because authorizer.class.name is not set\n")
            return 0
        authorizer = make_authorizer(config, acls.cache, lambda: 0, lambda delay_ms, task: None)
        decision = authorizer.explain(
            options.principal, options.host, options.operation, resource.resource_type, resource.name or ""
        )
        sys.stdout.write(f"{'allowed' if decision.is_allowed else 'denied'}: {_make_printable(str(decision))}\n")
        return 0 if decision.is_allowed else EXIT_DENIED

    return run


def _make_rules(options: argparse.Namespace) -> dict[AclFilter, set[AclEntry]]:
    """Return the entries for each resource; none if the command has no principal. Raises UsageError."""
    has_role = options.producer or options.consumer
    if has_role and (options.operation or options.deny_principal or options.deny_host):
        raise UsageError("--producer and --consumer exclude --operation, --deny-principal and --deny-host")
    if options.idempotent and not options.producer:
        raise UsageError("--idempotent requires --producer")
    if has_role and not options.topic:
        raise UsageError("--producer and --consumer require --topic")
    if options.consumer and not options.group:
        raise UsageError("--consumer requires --group")
    for permission in ("allow", "deny"):
        if getattr(options, f"{permission}_host") and not getattr(options, f"{permission}_principal"):
            raise UsageError(f"--{permission}-host requires --{permission}-principal")
    filters = list(_make_filters(options))
    if not filters:
        raise UsageError("specify a resource, such as --topic NAME or --cluster")
    rules: dict[AclFilter, set[AclEntry]] = {}
    for one in filters:
        operations = _find_operations(options, one.resource_type) if has_role else options.operation or [Operation.ALL]
        if has_role and not operations:
            continue
        _check_operations(one.resource_type, operations)
        rules.setdefault(one, set()).update(_make_entries(options, operations))
    return rules


def _find_operations(options: argparse.Namespace, resource_type: ResourceType) -> list[Operation]:
    """Return the operations on a resource that the roles of the command need."""
    operations: list[Operation] = []
    if options.producer:
        operations += _PRODUCER.get(resource_type, ())
        if options.idempotent and resource_type is ResourceType.CLUSTER:
            operations.append(Operation.IDEMPOTENT_WRITE)
    if options.consumer:
        operations += _CONSUMER.get(resource_type, ())
    return operations


def _make_entries(options: argparse.Namespace, operations: Iterable[Operation]) -> Iterator[AclEntry]:
    for permission in (Permission.ALLOW, Permission.DENY):
        name = permission.name.lower()
        for principal in getattr(options, f"{name}_principal"):
            _check_principal(principal)
            for host in getattr(options, f"{name}_host") or [WILDCARD]:
                for operation in operations:
                    yield AclEntry(principal.strip(), host.strip(), operation, permission)


def _make_filters(options: argparse.Namespace) -> Iterator[AclFilter]:
    """Iterate over the resources of the command."""
    for option, resource_type in _RESOURCES.items():
        for name in getattr(options, option):
            if not name:
                raise UsageError(f"--{option.replace('_', '-')} must not be empty")
            yield AclFilter(resource_type, name, options.resource_pattern_type)
    if options.cluster or getattr(options, "idempotent", False):
        yield AclFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)


def _check_operations(resource_type: ResourceType, operations: Iterable[Operation]) -> None:
    supported = (*SUPPORTED_OPERATIONS[resource_type], Operation.ALL)
    for operation in operations:
        if operation not in supported:
            names = ", ".join(one.title for one in supported)
            raise UsageError(f"{resource_type.title} has no operation {operation.title}, only {names}")


def _check_principal(text: str) -> None:
    try:
        parse_principal(text.strip())
    except ValueError as error:
        raise UsageError(str(error)) from None


def _parse_operation(text: str) -> Operation:
    return _parse_code(Operation, text)


def _parse_pattern_type(text: str) -> PatternType:
    return _parse_code(PatternType, text)


def _parse_code(kind: type[C], text: str) -> C:
    try:
        code = kind.parse(text.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not code:
        raise argparse.ArgumentTypeError(f"unknown {kind.__name__}: {text!r}")
    return code


class _ReactorExecutor:
    """Executes the changes of a command, which has no other work."""

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine, also after it has waited."""
        from twisted.internet.defer import Deferred

        Deferred.fromCoroutine(work)

    def waiter(self) -> Waiter:
        """Return a new waiter."""
        from twisted.internet.defer import Deferred

        return Deferred()

    async def pause(self) -> None:
        """Return at once."""


async def _with_acls(store: MetadataStore, environment: Environment, config: BrokerConfig, work: _Command) -> int:
    cache = AclCache(store, lambda description, follow: None, no_pause)
    acls = AclChanges(store, cache, EventLoop(_ReactorExecutor()), environment.now_ms)
    await acls.load()
    return await work(acls, config)


def _list_bindings(acls: AclChanges) -> list[AclBinding]:
    return sorted(AclBinding(pattern, entry) for pattern, entries in acls.cache.acls.items() for entry in entries)


def _matches(binding: AclBinding, one: AclFilter) -> bool:
    return one.matches_pattern(binding.pattern) and one.matches_entry(binding.entry)


def _print_all(bindings: Iterable[AclBinding]) -> None:
    sys.stdout.writelines(f"{_make_printable(str(binding))}\n" for binding in sorted(bindings))


def _make_printable(text: str) -> str:
    """Return a text whose control characters are escaped: names may contain any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


