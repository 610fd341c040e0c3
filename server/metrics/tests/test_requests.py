"""Metrics of requests."""

from odradek.server.apis import APIS
from odradek.server.measurements.request_times import RequestTimes
from odradek.server.measurements.response_errors import ResponseErrors
from odradek.server.metrics.collectors.requests import _STAGES, collect_requests
from odradek.server.metrics.exposition import write_families
from odradek.server.network.writers.write_coalescer import WriteCoalescer


def test_the_quantiles_of_each_api_are_found_in_a_step_of_their_own():
    times = RequestTimes(lambda: 0.0, lambda code: True, WriteCoalescer())
    for key in range(10):
        times.find(bytes([0, key, 0, 4]), is_follower=False).total.record(0.016)
    written: list[bytes] = []
    steps = sum(1 for _ in write_families(collect_requests(times, ResponseErrors(), APIS.values()), written.append))
    # Fetch has a second name.
    assert steps >= 11 * len(_STAGES)
    text = b"".join(written).decode()
    for name in ("Produce", "FetchConsumer"):
        median = f'kafka_network_requestmetrics_totaltimems{{request="{name}",quantile="0.50"}} '
        assert 15 < float(text.partition(median)[2].partition("\n")[0]) < 17


def collect_without_requests() -> list[str]:
    """Return the lines of a broker that has had no request."""
    written: list[bytes] = []
    times = RequestTimes(lambda: 0.0, lambda code: True, WriteCoalescer())
    list(write_families(collect_requests(times, ResponseErrors(), APIS.values()), written.append))
    return b"".join(written).decode().splitlines()


def test_apis_without_requests_have_the_count_0():
    lines = collect_without_requests()
    # Seven stages and the size, also of the two kinds of Fetch.
    assert len([line for line in lines if "_count{" in line and line.endswith("} 0")]) == 8 * (len(APIS) + 2)
    assert 'kafka_network_requestmetrics_requestbytes_count{request="FetchFollower"} 0' in lines
    assert not any("version" in line for line in lines)


def test_requests_that_dashboards_show_have_the_quantiles_0():
    lines = [line for line in collect_without_requests() if "quantile" in line]
    requests = {line.partition('request="')[2].partition('"')[0] for line in lines}
    assert requests == {"Produce", "Fetch", "FetchConsumer", "FetchFollower"}
    assert {float(line.rpartition(" ")[2]) for line in lines} == {0}
