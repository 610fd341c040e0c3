import pytest

from odradek.spark_it.definition.durations import is_instant, is_interval, parse_instant_ms, parse_interval_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10 seconds", 10_000), ("1 second", 1000), ("500 ms", 500), ("250ms", 250), ("1 hour 30 minutes", 5_400_000),
        ("1h30m", 5_400_000), ("2 days", 172_800_000), ("10s", 10_000), ("0 seconds", 0), (" 5 MINUTES ", 300_000),
        ("3 milliseconds", 3), ("15 min", 900_000), ("15 mins", 900_000),
    ],
)  # fmt: skip
def test_intervals(text, ms):
    assert parse_interval_ms(text) == ms


@pytest.mark.parametrize("text", ["", " ", "10", "ten seconds", "10 weeks", "seconds", "1.5 seconds", "-1 second"])
def test_texts_that_are_not_intervals(text):
    assert not is_interval(text)


def test_instants():
    assert parse_instant_ms("1970-01-01T00:00:01Z") == 1000
    assert parse_instant_ms("1970-01-01T01:00:01.5+01:00") == 1500
    assert parse_instant_ms("1970-01-02") == 86_400_000
    assert parse_instant_ms("1234") == 1234
    assert not is_instant("yesterday")
    assert not is_instant("-5")
