"""Checks of the cluster's state: controller, brokers, partitions, settings of topics that fail with one broker."""

from collections.abc import Iterator
from typing import Final

from odradek.tools.doctor.findings import Finding, State, list_some
from odradek.tools.kafka.status import ClusterStatus, PartitionRow

_CLUSTER: Final = "cluster"
_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def check_state(status: ClusterStatus) -> Iterator[Finding]:
    """Iterate over the findings about a cluster."""
    yield _check_controller(status)
    if missing := status.missing_brokers:
        names = list_some([str(broker) for broker in missing])
        fact = f"{len(missing)} with replicas not live: {names}"
        yield Finding(State.PROBLEM, _CLUSTER, "brokers", fact, "start them, or reassign their partitions")
    else:
        yield Finding(State.OK, _CLUSTER, "brokers", f"{len(status.brokers)} live")
    yield from _check_partitions(status.partitions)
    yield from _check_min_isr(status.partitions)
    if len(status.brokers) > 1:
        yield from _check_internal_topics(status)


def _check_controller(status: ClusterStatus) -> Finding:
    if status.controller is None:
        fix = "start the controllers, or ZooKeeper; until then no leader is elected and no topic is changed"
        return Finding(State.PROBLEM, _CLUSTER, "controller", "there is none", fix)
    return Finding(State.OK, _CLUSTER, "controller", f"broker {status.controller}")


def _check_partitions(rows: list[PartitionRow]) -> Iterator[Finding]:
    cases = (
        (
            "offline partitions",
            State.PROBLEM,
            [row for row in rows if row.is_offline],
            "start a broker that has an in-sync replica; see odradek cluster status",
        ),
        (
            "under-replicated partitions",
            State.PROBLEM,
            [row for row in rows if row.is_under_replicated and not row.is_offline],
            "start the missing brokers; if all are live, followers are too slow or have a failed disk",
        ),
        (
            "partitions under min ISR",
            State.PROBLEM,
            [row for row in rows if row.is_under_min_isr],
            "producers with acks=all are refused until more replicas are in sync",
        ),
    )
    for check, state, found, fix in cases:
        if found:
            yield Finding(state, _CLUSTER, check, f"{len(found)} of {len(rows)}: {_list(found)}", fix)
        else:
            yield Finding(State.OK, _CLUSTER, check, f"none of {len(rows)}")


def _check_min_isr(rows: list[PartitionRow]) -> Iterator[Finding]:
    check = "min.insync.replicas"
    readable = [row for row in rows if row.min_isr is not None]
    if rows and not readable:
        yield Finding(State.UNCHECKED, _CLUSTER, check, "this client must not describe the configurations of topics")
        return
    above = _name_topics([row for row in readable if row.min_isr is not None and row.min_isr > len(row.replicas)])
    equal = _name_topics([row for row in readable if row.min_isr == len(row.replicas) > 1])
    if above:
        fact = f"above the number of replicas: {list_some(above)}"
        fix = "records with acks=all are acknowledged with fewer copies than it requires: add replicas, or lower it"
        yield Finding(State.WARNING, _CLUSTER, check, fact, fix)
    if equal:
        fact = f"equal to the number of replicas: {list_some(equal)}"
        fix = "producers with acks=all are refused while one broker restarts: lower it by one, or add a replica"
        yield Finding(State.WARNING, _CLUSTER, check, fact, fix)
    if not above and not equal:
        yield Finding(State.OK, _CLUSTER, check, "a broker can restart in every replicated topic")


def _check_internal_topics(status: ClusterStatus) -> Iterator[Finding]:
    check = "internal topics"
    single = _name_topics([row for row in status.partitions if row.topic in _INTERNAL and len(row.replicas) == 1])
    if single:
        fact = f"one replica in a cluster of {len(status.brokers)} brokers: {list_some(single)}"
        fix = "groups and transactions stop with one broker: add replicas with odradek partition reassign"
        yield Finding(State.PROBLEM, _CLUSTER, check, fact, fix)
        return
    present = _name_topics([row for row in status.partitions if row.topic in _INTERNAL])
    fact = f"replicated: {', '.join(present)}" if present else "none exists yet"
    yield Finding(State.OK, _CLUSTER, check, fact)


def _list(rows: list[PartitionRow]) -> str:
    return list_some([f"{row.topic}-{row.partition}" for row in rows])


def _name_topics(rows: list[PartitionRow]) -> list[str]:
    return sorted({row.topic for row in rows})
