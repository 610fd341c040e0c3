"""Rates and token buckets compared with Kafka's own classes, for random values at random times."""

import random

import pytest

from odradek.protocol.tests.java_oracle import java_gateway
from odradek.server.quotas.meters import BucketMeter, RateMeter
from odradek.server.quotas.rates import Window

VALUES = 150


@pytest.fixture(scope="module")
def jvm():
    with java_gateway(("kafka-clients-",)) as gateway:
        yield gateway.jvm


def configure(jvm, window, bound):
    """Return Kafka's configuration of a metric."""
    metrics = jvm.org.apache.kafka.common.metrics
    config = metrics.MetricConfig().samples(window.samples).quota(metrics.Quota(bound, True))
    return config.timeWindow(window.sample_ms, jvm.java.util.concurrent.TimeUnit.MILLISECONDS)


def make_limited(kind, window, bound):
    meter = kind(window, 0)
    meter.bound = bound
    return meter


@pytest.mark.parametrize("seed", range(6))
def test_throttle_times_of_rates_equal_those_of_kafka(jvm, seed):
    source = random.Random(seed)
    window = Window(source.choice((1, 2, 3, 11)), source.choice((1000, 2000)))
    bound = float(source.choice((10, 1000, 123456)))
    config, kafka = configure(jvm, window, bound), jvm.org.apache.kafka.common.metrics.stats.Rate()
    meter = make_limited(RateMeter, window, bound)
    throttled = 0
    time_ms = 1_700_000_000_000
    for _ in range(VALUES):
        time_ms += source.choice((0, 1, 7, 300, 1000, 2500, source.randrange(40_000)))
        value = source.choice((1.0, 0.5, bound, bound * 20, -bound))
        kafka.record(config, value, time_ms)
        rate = kafka.measure(config, time_ms)
        excess_ms = (rate - bound) / bound * kafka.windowSize(config, time_ms)
        expected_ms = jvm.java.lang.Math.round(excess_ms) if rate > bound else 0
        assert meter.record(value, time_ms) == expected_ms
        throttled += expected_ms > 0
    assert 0 < throttled < VALUES


@pytest.mark.parametrize("seed", range(3))
def test_throttle_times_of_token_buckets_equal_those_of_kafka(jvm, seed):
    source = random.Random(seed)
    window, bound = Window(11, 1000), source.choice((0.5, 3.0, 40.0))
    config, kafka = configure(jvm, window, bound), jvm.org.apache.kafka.common.metrics.stats.TokenBucket()
    meter = make_limited(BucketMeter, window, bound)
    throttled = 0
    time_ms = 1_700_000_000_000
    for _ in range(VALUES):
        time_ms += source.choice((0, 10, 1000, source.randrange(60_000)))
        tokens = kafka.measure(config, time_ms)
        expected_ms = jvm.java.lang.Math.round(-tokens / bound * 1000) if tokens < 0 else 0
        assert meter.find_throttle_ms(time_ms) == expected_ms
        throttled += expected_ms > 0
        value = float(source.choice((1, 10, 300)))
        kafka.record(config, value, time_ms)
        meter.spend(value, time_ms)
    assert 0 < throttled < VALUES
