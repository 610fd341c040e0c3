"""The invariants fail a run in which leader epochs fall behind those in the logs."""

import pytest

from odradek.replication.controller.states.epoch_floor import FoundEpochs
from odradek.simulation.tests.sole_client import SoleClient


def with_restored_store(monkeypatch):
    """Start with epoch 0 of t and its coordinator in the store and epoch 3 in the logs, without the safeguard."""
    client = SoleClient(transaction_state_log_num_partitions="1")
    client.create_topic()
    client.commit_transaction(b"1")
    backup = client.leave_store_behind()
    client.commit_transaction(b"2")
    client.wait(5)
    client.stop()
    client.world.metadata.restore(backup)
    monkeypatch.setattr(FoundEpochs, "least_epoch", lambda *arguments, **options: lambda topic, partition: 0)
    client.start()
    return client


@pytest.mark.parametrize(
    "text",
    [
        "Partition(t-0, leader, epoch 0): the log has leader epoch 3",
        "/data/t-0: a batch has leader epoch 3, the leader has 0",
        "Partition(__transaction_state-0, leader, epoch 0): /data/t-0 has a marker of coordinator epoch 3",
    ],
)
def test_a_start_in_epochs_below_those_of_the_logs(text, monkeypatch):
    client = with_restored_store(monkeypatch)
    assert any(text in failure for failure in client.world.failures)


def test_a_coordinator_that_partitions_fence(monkeypatch):
    client = with_restored_store(monkeypatch)
    client.wait(5)
    client.world.failures.clear()
    client.world.audit(client.world.broker.broker)
    text = "/data/t-0 has a marker of coordinator epoch 3 for producer 0, whose coordinator has epoch 0"
    assert any(text in failure for failure in client.world.failures)
