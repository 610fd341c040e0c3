"""Random faults of brokers and of an ensemble of ZooKeeper under load for some seconds.

`python -m compat_tests.cluster.chaos` runs them for half an hour.
"""

import os
import secrets

import pytest

from compat_tests.cluster.chaos import LEAST, Chaos
from compat_tests.cluster.faults import KILL_ZOOKEEPER_LEADER, LEAST_KINDS

pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(900)]

SECONDS = 40


def test_nothing_acknowledged_is_lost_or_duplicated_by_random_faults(tmp_path):
    seed = os.environ.get("ODRADEK_CHAOS_SEED") or secrets.token_hex(4)
    print(f"ODRADEK_CHAOS_SEED={seed}")
    chaos = Chaos(tmp_path, seed, zookeeper_servers=3, log=print, first_fault=KILL_ZOOKEEPER_LEADER)
    try:
        chaos.run(SECONDS)
    finally:
        print(chaos.log_text()[-10_000:])
    assert chaos.faults.counts[KILL_ZOOKEEPER_LEADER] >= 1
    assert len(chaos.faults.counts) >= LEAST_KINDS
    assert all(count >= LEAST for count in chaos.acknowledged.values()), chaos.acknowledged
