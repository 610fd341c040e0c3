from odradek.spark_it.execution.backoff import Backoff
from spark_it.tests.unit.support import CONSOLE, SOURCE, pipeline


def backoff_of(text, now):
    errors = pipeline(f"{SOURCE}{CONSOLE}[errors]\n{text}").errors
    return Backoff(errors, lambda: now[0])


def test_delays_grow_and_start_over_after_a_reset():
    one = backoff_of("retry.delay.max.ms = 1500\n", [0.0])
    assert [one.next_delay_s() for _ in range(4)] == [0.5, 1.0, 1.5, 1.5]
    one.reset()
    assert one.next_delay_s() == 0.5


def test_delays_end_at_the_timeout():
    now = [100.0]
    one = backoff_of("retry.timeout = 2000\n", now)
    assert one.next_delay_s() == 0.5
    now[0] = 101.0
    assert one.next_delay_s() == 1.0
    now[0] = 102.0
    assert one.next_delay_s() is None
    one.reset()
    assert one.next_delay_s() == 0.5
    assert backoff_of("retry.timeout = 0\n", now).next_delay_s() is None


def test_no_delay_is_longer_than_the_maximum():
    assert backoff_of("retry.delay.max.ms = 20\n", [0.0]).next_delay_s() == 0.02
