"""Quotas of clients: set, changed and removed at any time; the memory of clients; the charge of a request."""

import tracemalloc

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.produce import ProduceRequest
from odradek.server.quotas import meters
from odradek.server.quotas.client_charges import ClientCharges
from odradek.server.quotas.client_quotas import ClientQuotas
from odradek.server.quotas.rates import Window
from odradek.server.security.principal import ANONYMOUS, Principal
from odradek.server.tests.wire import request_frame
from odradek.server.work.slices import Slices

HOUR_MS = 3_600_000
PRODUCE = request_frame(ProduceRequest(acks=1), 9)
FETCH = request_frame(FetchRequest(), 11)
HEARTBEAT = request_frame(HeartbeatRequest(), 4)


class Setting:
    def __init__(self):
        self.now_s = 1000.0
        self.quotas = ClientQuotas(
            Window(11, 1000), Window(11, 1000), lambda: int(self.now_s * 1000), lambda: self.now_s
        )
        self.charges = ClientCharges(self.quotas)

    def put(self, path, **quotas):
        self.quotas.update({path: {key: str(value) for key, value in quotas.items()}})

    def charge(self, frame=HEARTBEAT, principal=ANONYMOUS):
        return self.charges.make_charge(frame, principal)

    def run(self, seconds, frame=HEARTBEAT):
        """Settle a request that took this time; return its throttle time."""
        charge = self.charge(frame)
        charge.resume()
        self.now_s += seconds
        throttle_ms = charge.settle()
        charge.pause()
        return throttle_ms


@pytest.fixture
def setting():
    return Setting()


def test_a_quota_makes_quotas_active_until_it_is_removed(setting):
    assert not setting.quotas.is_active
    setting.put("clients/test", producer_byte_rate=1000)
    assert setting.quotas.is_active
    setting.put("clients/test")
    assert not setting.quotas.is_active
    assert setting.charge(PRODUCE) is None


def test_only_requests_to_which_a_quota_applies_have_a_charge(setting):
    setting.put("clients/test", producer_byte_rate=1000)
    assert setting.charge(PRODUCE) is not None
    assert setting.charge(FETCH) is None
    assert setting.charge(HEARTBEAT) is None
    assert setting.charge(request_frame(ProduceRequest(acks=1), 9, client_id=b"other")) is None
    assert setting.quotas.count_meters() == 1


def test_a_connection_follows_the_changes_of_quotas_and_principals(setting):
    setting.put("clients/test", producer_byte_rate=1000)
    assert setting.charge(PRODUCE) is not None
    setting.put("clients/test", consumer_byte_rate=1000)
    assert setting.charge(PRODUCE) is None
    assert setting.charge(FETCH) is not None
    setting.put("users/alice", producer_byte_rate=5)
    assert setting.charge(PRODUCE) is None
    assert setting.charge(PRODUCE, Principal("User", "alice")) is not None


def test_use_is_kept_when_a_quota_is_raised(setting):
    setting.put("clients/test", request_percentage=1)
    assert setting.run(0.2) > 0
    setting.put("clients/test", request_percentage=2)
    assert setting.run(0) == 0
    assert setting.run(0.1) > 0


def test_an_infinite_quota_overrides_others(setting):
    setting.put("clients/<default>", producer_byte_rate=1)
    setting.put("clients/test", producer_byte_rate="Infinity")
    assert setting.charge(PRODUCE) is None


@pytest.mark.parametrize("value", ["0", "-1", "NaN", "many", ""])
def test_an_invalid_quota_of_a_tool_has_no_effect_and_is_reported(setting, value, caplog):
    setting.put("clients/test", producer_byte_rate=value)
    assert not setting.quotas.is_active
    assert "clients/test" in caplog.text


def test_malformed_requests_have_no_charge(setting):
    setting.put("clients/<default>", request_percentage=1)
    for size in range(14):
        assert setting.charge(HEARTBEAT[:size]) is None
    assert setting.charge(HEARTBEAT[:12] + b"\x7f\xff" + b"x") is not None
    assert setting.charge(HEARTBEAT[:12] + b"\x80\x00") is None
    assert setting.charge(HEARTBEAT[:12] + b"\0\2\xff\xfe") is not None


def test_idle_meters_are_removed_and_connections_use_new_ones(setting):
    setting.put("clients/<default>", request_percentage=1)
    for number in range(1200):
        setting.charge(request_frame(HeartbeatRequest(), 4, client_id=b"client-%d" % number))
    assert setting.quotas.count_meters() == 1200
    setting.now_s += 3601
    setting.run(0.5)
    for _ in range(3):
        setting.quotas.remove_idle()
    assert setting.quotas.count_meters() == 1
    # The connection of the client in use finds the meter that it used before.
    assert setting.run(0) > 0


def test_new_clients_replace_idle_ones(setting):
    setting.put("clients/<default>", request_percentage=1)
    for number in range(5000):
        setting.now_s += 10
        setting.charge(request_frame(HeartbeatRequest(), 4, client_id=b"client-%d" % number))
    assert setting.quotas.count_meters() < 1000


def test_all_connections_of_a_client_share_its_quota_after_it_was_idle(setting):
    """A new client removes the idle meter of another, which a connection may have used before."""
    setting.put("clients/<default>", producer_byte_rate=1000)
    before = setting.charge(PRODUCE)
    setting.now_s += 3601
    setting.quotas.find("ANONYMOUS", "another client")
    after = setting.charge(PRODUCE)
    other = ClientCharges(setting.quotas).make_charge(PRODUCE, ANONYMOUS)
    assert after._limits.produce is other._limits.produce
    assert after._limits.produce is not before._limits.produce


def test_clients_that_invent_ids_do_not_fill_the_memory(setting, monkeypatch):
    monkeypatch.setattr(meters, "MAX_METERS", 50)
    setting.put("clients/<default>", request_percentage=1)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(500):
        setting.quotas.find("ANONYMOUS", f"{number:030000}")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert setting.quotas.count_meters() == 50
    assert after - before < 50 * 3000
    found = [setting.quotas.find("ANONYMOUS", one * 300).request for one in "aab"]
    assert found[0] is found[1] is not found[2]


def test_the_memory_of_a_client_is_small(setting):
    setting.put("clients/<default>", producer_byte_rate=1000, consumer_byte_rate=1000, request_percentage=1)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1000):
        limits = setting.quotas.find("ANONYMOUS", f"client-{number}")
        for meter in (limits.produce, limits.fetch, limits.request):
            for second in range(30):
                meter.record(1, second * 1000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 1000 < 3000


def test_the_time_of_a_request_counts_and_the_throttle_time_is_capped(setting):
    setting.put("clients/test", request_percentage=10)
    # 10 % of a window of 10 s are permitted.
    assert setting.run(0.9) == 0
    assert 0 < setting.run(0.15) < 1000
    assert setting.run(9) == 1000


def test_the_time_after_the_response_counts_for_the_next_request(setting):
    setting.put("clients/test", request_percentage=10)
    charge = setting.charge()
    charge.resume()
    assert charge.settle() == 0
    setting.now_s += 2
    charge.pause()
    assert setting.run(0) > 0


def test_work_in_slices_counts(setting):
    setting.put("clients/test", request_percentage=10)
    clock = Clock()
    slices = Slices(clock, lambda: setting.now_s)
    slices.meter = setting.quotas.attribute
    waited_for = Deferred()

    def work():
        setting.now_s += 0.5
        yield
        setting.now_s += 0.7
        yield waited_for
        setting.now_s += 0.3
        return "done"

    charge = setting.charge()
    charge.resume()
    setting.now_s += 0.1
    result = slices.run(work())
    charge.pause()
    # Other requests do not count, and neither does the wait.
    setting.now_s += 5
    clock.advance(0)
    setting.now_s += 5
    waited_for.callback(None)
    clock.advance(0)
    clock.advance(0)
    assert result.result == "done"
    assert charge.settle() > 0
    expected = setting.quotas.find("ANONYMOUS", "test").request
    rate, window_ms = expected._rate.measure(expected.window, int(setting.now_s * 1000))
    assert rate * window_ms / 1000 == pytest.approx(160)


def test_the_longest_throttle_time_applies(setting):
    setting.put("clients/test", request_percentage=1, producer_byte_rate=1)
    assert setting.run(0.5, PRODUCE) == (len(PRODUCE) - 4 - 10) * 1000
    setting.now_s += 100
    assert setting.run(20, PRODUCE) == (len(PRODUCE) - 4 - 10) * 1000


def test_the_applied_throttle_time_is_recorded_for_the_quota_that_it_is_of(setting):
    def read():
        now_ms = int(setting.now_s * 1000)
        limits = setting.quotas.find("ANONYMOUS", "test")
        meters = limits.request, limits.produce
        return [0 if one.throttling is None else one.throttling.measure(now_ms) for one in meters]

    setting.put("clients/test", request_percentage=10, producer_byte_rate=10_000)
    assert setting.run(50, PRODUCE) == 1000
    assert read() == [1000, 0]
    setting.now_s += 1000
    setting.put("clients/test", request_percentage=10_000, producer_byte_rate=1)
    throttle_ms = setting.run(0, PRODUCE)
    assert read() == [0, throttle_ms]


def test_a_failed_produce_counts_its_time_only(setting):
    setting.put("clients/test", producer_byte_rate=1)
    charge = setting.charge(PRODUCE)
    assert charge.settle(has_failed=True) == 0
    assert charge.settle() == 0


def test_a_produce_without_a_response_counts_its_bytes_only(setting):
    setting.put("clients/test", producer_byte_rate=1, request_percentage=1)
    charge = setting.charge(PRODUCE)
    charge.resume()
    setting.now_s += 50
    charge.pause()
    assert charge.settle_without_response() == (len(PRODUCE) - 4 - 10) * 1000


def test_a_throttled_fetch_does_not_count(setting):
    setting.put("clients/test", consumer_byte_rate=1000)
    assert setting.charge(FETCH).max_fetch_bytes == 10_000
    assert setting.charge(FETCH).settle_fetch(10_000) == 0
    assert setting.charge(FETCH).settle_fetch(5000) == 5000
    assert setting.charge(FETCH).settle_fetch(1) == 1


def test_mutations(setting):
    setting.put("clients/test", controller_mutation_rate=1)
    frame = request_frame(HeartbeatRequest(), 4)
    create = frame[:4] + (19).to_bytes(2, "big") + frame[6:]
    assert setting.charge(frame) is None
    charge = setting.charge(create)
    strict = charge.make_mutation_quota(is_strict=True)
    strict.record(14)
    assert charge.settle() == 0
    charge = setting.charge(create)
    strict = charge.make_mutation_quota(is_strict=True)
    with pytest.raises(KafkaError) as raised:
        strict.record(1)
    assert raised.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    setting.now_s += 1
    assert charge.settle() == 2000
    charge = setting.charge(create)
    charge.make_mutation_quota(is_strict=False).record(1)
    assert charge.settle() == 3000


@pytest.mark.parametrize("key", [4, 5, 6, 7, 27, 56, 67])
def test_requests_between_brokers_are_exempt(setting, key):
    frame = HEARTBEAT[:4] + key.to_bytes(2, "big") + HEARTBEAT[6:]
    setting.put("clients/<default>", producer_byte_rate=1)
    assert setting.charge(frame) is None
    setting.put("clients/<default>", request_percentage=1)
    assert setting.run(10, frame) == setting.run(0) == 0
