"""Metrics of the process."""

import gc

from odradek.server.metrics.collectors.process import CollectionTimes


def test_garbage_collections_are_measured_until_the_first_stop():
    times = CollectionTimes(lambda: 0.0)
    times.start()
    gc.collect()
    count = times.count
    assert count
    for _ in range(2):
        times.stop()
    gc.collect()
    assert times.count == count
