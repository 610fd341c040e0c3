"""All checks of a cluster, and of the machine of each broker that runs on this one."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from odradek.tools.doctor.brokers import (
    GetUrl,
    Versions,
    check_clock,
    check_log_dirs,
    check_metrics,
    check_versions,
    fetch_properties,
    fetch_versions,
    get_url,
)
from odradek.tools.doctor.findings import Finding, State, name_broker
from odradek.tools.doctor.machine import Machine, check_machine
from odradek.tools.doctor.processes import find_process, is_local_host
from odradek.tools.doctor.reachability import Connect, check_connection, check_listener, parse_listeners
from odradek.tools.doctor.state import check_state
from odradek.tools.kafka.cluster import Cluster, RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity, WireClient
from odradek.tools.kafka.status import BrokerRow, fetch_status
from odradek.tools.kafka.topics.log_dirs import LogDir, fetch_log_dirs_of

RESPONSE_TIMEOUT_S = 15.0


def connect_briefly(address: Address, security: ClientSecurity) -> WireClient:
    """Connect with a short timeout, because a broker that does not respond is a finding."""
    return WireClient(address, security, response_timeout_s=RESPONSE_TIMEOUT_S)


class Environment(NamedTuple):
    """The sources of facts other than the cluster; tests replace them."""

    connect: Connect = connect_briefly
    get_url: GetUrl = get_url
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    is_local: Callable[[str], bool] = is_local_host
    machine: Machine = Machine()


_ENVIRONMENT = Environment()


def diagnose(cluster: Cluster, security: ClientSecurity, environment: Environment = _ENVIRONMENT) -> Iterator[Finding]:
    """Iterate over the findings as the checks make them. Raises NoResponseError if no broker answers."""
    first = cluster.any_broker()
    status = fetch_status(first)
    yield from check_state(status)
    yield from _attempt("cluster", "controller's clock", lambda: iter([check_clock(first, environment.now_ms)]))
    versions: dict[int, Versions] = {}
    for broker in status.brokers:
        address = Address(broker.host, broker.port)
        client, finding = check_connection(broker.id, address, first.address, partial(cluster.broker, broker.id))
        yield finding
        # The only broker is the one that has answered, although its own address is wrong.
        if client is None and len(status.brokers) == 1:
            client = first
        if client is None:
            yield _unchecked(broker.id)
            continue
        yield from _check_broker(cluster, client, broker, security, environment, versions)
    yield check_versions(versions, len(status.brokers))


def _check_broker(
    cluster: Cluster,
    client: WireClient,
    broker: BrokerRow,
    security: ClientSecurity,
    environment: Environment,
    versions: dict[int, Versions],
) -> Iterator[Finding]:
    subject = name_broker(broker.id)
    log_dirs: list[LogDir] = []

    def check_disks() -> Iterator[Finding]:
        log_dirs.extend(fetch_log_dirs_of(client, broker.id))
        return check_log_dirs(broker.id, log_dirs)

    def compare() -> Iterator[Finding]:
        versions[broker.id] = fetch_versions(client)
        return iter(())

    yield from _attempt(subject, "APIs", compare)
    yield from _attempt(subject, "log directory", check_disks)
    yield from _attempt(subject, "configuration", lambda: _check_properties(client, broker, security, environment))
    yield from _check_machine(broker, [log_dir.path for log_dir in log_dirs], environment)


def _check_properties(
    client: WireClient, broker: BrokerRow, security: ClientSecurity, environment: Environment
) -> Iterator[Finding]:
    properties = fetch_properties(client, broker.id)
    own = Address(broker.host, broker.port)
    for listener in parse_listeners(properties):
        if listener.address != own:
            yield check_listener(broker.id, listener, security, environment.connect)
    if listening := properties.get("metrics.listener"):
        yield check_metrics(broker.id, broker.host, listening, environment.get_url)


def _check_machine(broker: BrokerRow, log_dirs: Sequence[str], environment: Environment) -> Iterator[Finding]:
    subject = f"machine of broker {broker.id}"
    address = Address(broker.host, broker.port)
    machine = environment.machine
    try:
        found = find_process(address, log_dirs, environment.is_local, machine.proc)
    except OSError as error:
        yield Finding(State.UNCHECKED, subject, "process", f"processes cannot be read: {error}")
        return
    if found.process is None:
        yield Finding(State.UNCHECKED, subject, "process", found.reason, "run odradek doctor on the broker's machine")
        return
    yield from check_machine(machine, subject, found.process, log_dirs)


def _attempt(subject: str, check: str, make_findings: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Iterate over the findings of a check; if a request of it fails, over one that says so."""
    try:
        yield from make_findings()
    except (RequestError, NoResponseError) as error:
        yield Finding(State.UNCHECKED, subject, check, str(error))


def _unchecked(broker: int) -> Finding:
    return Finding(State.UNCHECKED, name_broker(broker), "broker", "it is not reachable: all other checks were omitted")
