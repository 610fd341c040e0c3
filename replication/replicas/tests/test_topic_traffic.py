"""Sums of the counters of topics, in steps between which topics are created and deleted."""

from odradek.coordinator.steps import run_to_end
from odradek.replication.replicas.topic_traffic import Traffic

TOPICS = 1000


def test_a_topic_that_is_deleted_between_two_steps_is_counted_once():
    traffic = Traffic()
    for number in range(TOPICS):
        traffic.begin(f"t{number}").bytes_in = 1
    traffic.end("t0")
    steps = traffic.total_in_steps()
    next(steps)
    for number in (1, TOPICS - 1):
        traffic.end(f"t{number}")
    traffic.begin("new").bytes_in = 1
    assert run_to_end(steps).bytes_in == TOPICS
    assert run_to_end(traffic.total_in_steps()).bytes_in == TOPICS + 1


def test_the_sum_of_many_topics_takes_many_steps():
    traffic = Traffic()
    for number in range(TOPICS):
        traffic.begin(f"t{number}")
    assert len(list(traffic.total_in_steps())) == 10
