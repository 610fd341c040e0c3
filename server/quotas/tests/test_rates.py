"""Rates, token buckets and throttle times, with the numbers of Kafka's own tests."""

from odradek.server.quotas.meters import BucketMeter, RateMeter
from odradek.server.quotas.rates import Window

WINDOW = Window(11, 1000)


def limited(bound, kind=RateMeter):
    meter = kind(WINDOW, 0)
    meter.bound = bound
    return meter


def test_a_burst_above_the_window_is_throttled_until_its_sample_ends():
    """Numbers of Kafka's ClientQuotaManagerTest.testQuotaViolation."""
    meter = limited(500)
    now_ms = 0
    for _ in range(10):
        assert meter.record(400, now_ms) == 0
        now_ms += 1000
    # (600 - 500) / 500 * 10.5 s
    now_ms += 500
    assert meter.record(2300, now_ms) == 2100
    now_ms += 2100
    for _ in range(10):
        meter.record(400, now_ms)
        now_ms += 1000
    assert meter.record(0, now_ms) == 0


def test_a_first_request_may_use_the_whole_window():
    meter = limited(500)
    assert meter.burst == 5000
    assert meter.record(5000, 0) == 0
    assert meter.record(1, 0) == 2


def test_a_value_that_is_taken_back_does_not_count():
    meter = limited(500)
    assert meter.record(10_000, 0) == 10_000
    meter.add(-10_000, 0)
    assert meter.record(5000, 0) == 0


def test_a_client_that_pauses_has_a_whole_window_again():
    meter = limited(500)
    meter.record(50_000, 0)
    assert meter.record(1, 10_999) > 0
    assert meter.record(5000, 22_000) == 0


def test_a_token_bucket_permits_a_burst_and_is_refilled():
    meter = limited(5, BucketMeter)
    meter.spend(60, 1_000_000)
    # A burst of 55 is permitted, and 5 tokens take a second.
    assert meter.find_throttle_ms(1_000_000) == 1000
    assert meter.find_throttle_ms(1_000_900) == 100
    assert meter.find_throttle_ms(1_001_000) == 0
