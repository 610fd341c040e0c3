"""Times and durations in command lines."""

import pytest

from odradek.tools.kafka.times import parse_duration_ms, parse_time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:01.250", 1250),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000),
        ("1700000000000", 1_700_000_000_000),
    ],
)
def test_times(text, time_ms):
    assert parse_time_ms(text) == time_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250),
        ("90m", 5_400_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("P1DT2H3M4S", 93_784_000),
        ("PT0.5S", 500),
        ("P7D", 604_800_000),
    ],
)
def test_durations(text, duration_ms):
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "1w", "-1h", "1.5h"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "noon", "12", "2026-13-01"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="is not a time"):
        parse_time_ms(text)


def test_a_time_before_1970_is_no_special_position():
    assert parse_time_ms("1969-12-31T23:59:59.999") == 0


@pytest.mark.parametrize("text", ["99999999999999999999d", "P99999999999999D"])
def test_a_duration_that_no_request_can_have(text):
    with pytest.raises(ValueError, match="is too long"):
        parse_duration_ms(text)


def test_a_time_that_no_request_can_have():
    with pytest.raises(ValueError, match="is not a time"):
        parse_time_ms("9" * 20)
