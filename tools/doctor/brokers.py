"""Checks of each broker through the wire: log directories, APIs, the controller's clock, the metrics endpoint."""

import http.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
)
from odradek.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from odradek.tools.doctor.findings import Finding, State, format_bytes, judge_free, list_some, name_broker
from odradek.tools.kafka.api_names import name_api
from odradek.tools.kafka.cluster import check
from odradek.tools.kafka.connection.wire_client import WireClient
from odradek.tools.kafka.topics.configs import BROKER, RESOURCE_TYPES
from odradek.tools.kafka.topics.log_dirs import LogDir

FULL_SHARE: Final = 0.05
"""Share of free bytes below which a disk is nearly full; a third of it more is a warning."""
WARNING_SHARE: Final = 0.15
PROPERTIES: Final = (
    "advertised.listeners",
    "controller.listener.names",
    "listener.security.protocol.map",
    "listeners",
    "metrics.listener",
)
_HTTP_TIMEOUT_S: Final = 5.0
_CLOCK_WARNING_MS: Final = 1_000
_CLOCK_PROBLEM_MS: Final = 60_000

Versions = Mapping[int, tuple[int, int]]
GetUrl = Callable[[str], tuple[int, str]]


def fetch_properties(client: WireClient, broker: int) -> dict[str, str | None]:
    """Return the PROPERTIES that a broker has. Raises RequestError, NoResponseError."""
    resource = DescribeConfigsRequestDescribeConfigsResource(
        resource_type=RESOURCE_TYPES[BROKER], resource_name=str(broker), configuration_keys=list(PROPERTIES)
    )
    response = client.send(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
    [result] = response.results
    check(result.error_code, result.error_message)
    return {config.name: config.value for config in result.configs}


def fetch_versions(client: WireClient) -> Versions:
    """Return the versions of the APIs that a broker serves. Raises NoResponseError."""
    response = client.send(ApiVersionsRequest(), ApiVersionsResponse, 0)
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def check_log_dirs(broker: int, log_dirs: Sequence[LogDir]) -> Iterator[Finding]:
    """Iterate over the findings about the log directories of a broker."""
    subject, name = name_broker(broker), "log directory"
    if not log_dirs:
        yield Finding(State.UNCHECKED, subject, name, "this client must not describe the cluster")
    for log_dir in log_dirs:
        if log_dir.error is not None:
            fix = "look for the disk's error in the broker's log, replace the disk and restart the broker"
            yield Finding(State.PROBLEM, subject, name, f"{log_dir.path} is offline: {log_dir.error}", fix)
        elif log_dir.total_bytes is None or log_dir.usable_bytes is None:
            yield Finding(State.UNCHECKED, subject, name, f"{log_dir.path} is online; the broker reports no disk sizes")
        else:
            yield _judge_disk(subject, name, log_dir.path, log_dir.usable_bytes, log_dir.total_bytes)
        if log_dir.is_cordoned:
            fix = "remove it from cordoned.log.dirs when it shall get new replicas"
            yield Finding(State.WARNING, subject, name, f"{log_dir.path} is cordoned", fix)


def _judge_disk(subject: str, name: str, path: str, usable_bytes: int, total_bytes: int) -> Finding:
    fact = f"{path}: {format_bytes(usable_bytes)} of {format_bytes(total_bytes)} usable"
    state = judge_free(usable_bytes, total_bytes, FULL_SHARE, WARNING_SHARE)
    fix = "" if state is State.OK else "add disk space, or shorten retention.ms or retention.bytes of large topics"
    return Finding(state, subject, name, fact, fix)


def check_versions(versions: Mapping[int, Versions], brokers: int) -> Finding:
    """Return the finding about brokers whose APIs differ, as those of different releases do.

    brokers: number of live brokers, of which `versions` has those that could be read
    """
    name = "broker versions"
    if brokers < 2:
        return Finding(State.OK, "cluster", name, "there is one broker")
    if len(versions) < 2:
        return Finding(State.UNCHECKED, "cluster", name, f"read from {len(versions)} of {brokers} brokers")
    first, *others = sorted(versions)
    differing = sorted(
        {
            api
            for broker in others
            for api in {*versions[first], *versions[broker]}
            if versions[first].get(api) != versions[broker].get(api)
        }
    )
    if not differing:
        return Finding(State.OK, "cluster", name, f"{len(versions)} brokers serve the same versions of all APIs")
    unequal = [str(broker) for broker in others if versions[broker] != versions[first]]
    apis = list_some([name_api(api) for api in differing])
    fact = f"broker {list_some(unequal)} and broker {first} serve different versions of {apis}"
    return Finding(State.WARNING, "cluster", name, fact, "finish the upgrade: run the same release on all brokers")


def check_clock(client: WireClient, now_ms: Callable[[], int]) -> Finding:
    """Compare the controller's clock with that of this machine.

    DescribeQuorum is the only response with a broker's time: the leader reports itself as caught up now.
    """
    subject, name = "cluster", "controller's clock"
    if not client.serves(DescribeQuorumRequest):
        return Finding(State.UNCHECKED, subject, name, "the cluster has no API that returns a time")
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[partition])
    sent_ms = now_ms()
    response = client.send(DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse)
    received_ms = now_ms()
    check(response.error_code, response.error_message)
    [state] = [each for one in response.topics for each in one.partitions]
    check(state.error_code, state.error_message)
    times = [one.last_caught_up_timestamp for one in state.current_voters if one.replica_id == state.leader_id]
    if not times or times[0] <= 0:
        return Finding(State.UNCHECKED, subject, name, "the response has no time of the leader")
    return judge_clock(times[0], sent_ms, received_ms)


def judge_clock(reported_ms: int, sent_ms: int, received_ms: int) -> Finding:
    """Return the finding about a time that was read between two times of this machine."""
    early_ms, late_ms = sent_ms - reported_ms, reported_ms - received_ms
    off_ms = max(early_ms, late_ms, 0)
    direction = "behind" if early_ms > 0 else "ahead of"
    if off_ms < _CLOCK_WARNING_MS:
        return Finding(State.OK, "cluster", "controller's clock", "less than one second from that of this machine")
    state = State.PROBLEM if off_ms >= _CLOCK_PROBLEM_MS else State.WARNING
    fact = f"{off_ms / 1000:.1f} s {direction} that of this machine"
    fix = "run chrony or systemd-timesyncd on both: retention, tokens and timestamps depend on the clock"
    return Finding(state, "cluster", "controller's clock", fact, fix)


def check_metrics(broker: int, host: str, listener: str, get_url: GetUrl) -> Finding:
    """Return the finding about /readyz of `metrics.listener`; `host` replaces an address that means all interfaces."""
    subject, name = name_broker(broker), "metrics.listener"
    bound, _, port = listener.rpartition("://")[2].rpartition(":")
    if not port.isdecimal() or port == "0":
        return Finding(State.UNCHECKED, subject, name, f"{listener} has no fixed port")
    target = host if bound.strip("[]") in ("", "0.0.0.0", "::") else bound.strip("[]")
    url = f"http://{f'[{target}]' if ':' in target else target}:{port}/readyz"
    try:
        status, text = get_url(url)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        fix = "check that this machine may reach the port, if it should"
        return Finding(State.WARNING, subject, name, f"{url} does not answer: {reason}", fix)
    if status == http.client.OK:
        return Finding(State.OK, subject, name, f"{url}: ready")
    fix = "the broker is starting or has offline partitions; see its log"
    return Finding(State.PROBLEM, subject, name, f"{url}: {status} {' '.join(text.split())}", fix)


def get_url(url: str) -> tuple[int, str]:
    """Return status and text of a URL, without a proxy. Raises OSError, ValueError, HTTPException."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=_HTTP_TIMEOUT_S) as response:
            return response.status, response.read(1_000).decode("utf-8", "replace")
    except HTTPError as error:
        with error:
            return error.code, error.read(1_000).decode("utf-8", "replace")
