"""Checks of subscriptions: the codes are those of Apache Kafka 4.3 for the same values."""

import pytest

from odradek.coordinator.steps import run_to_end
from odradek.protocol.errors import ErrorCode as E
from odradek.protocol.errors import KafkaError
from odradek.server.telemetry.properties import normalize, parse_subscription


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("interval.ms", "100", E.NONE), ("interval.ms", " 200 ", E.NONE), ("interval.ms", "3600000", E.NONE),
        ("interval.ms", "99", E.INVALID_REQUEST), ("interval.ms", "3600001", E.INVALID_REQUEST),
        ("interval.ms", "x", E.INVALID_CONFIG), ("interval.ms", "", E.INVALID_CONFIG),
        ("interval.ms", "99999999999", E.INVALID_CONFIG), ("bogus", "1", E.INVALID_REQUEST),
        ("metrics", "", E.NONE), ("metrics", "*", E.NONE), ("metrics", " a , b ,a", E.NONE),
        ("metrics", "a,,b", E.INVALID_CONFIG), ("match", "", E.NONE), ("match", "client_id=x", E.NONE),
        ("match", " client_id = b.* , client_software_name=x", E.NONE), ("match", "client_id=x,client_id=y", E.NONE),
        ("match", "client_id=(?<n>x)", E.NONE), ("match", "bogus=x", E.INVALID_CONFIG),
        ("match", "client_id", E.INVALID_CONFIG), ("match", "client_id=", E.INVALID_CONFIG),
        ("match", "client_id=a=b", E.INVALID_CONFIG), ("match", "client_id=[", E.INVALID_CONFIG),
        ("match", "client_id=a{1,2}", E.INVALID_CONFIG), ("match", "client_id==", E.INVALID_CONFIG),
        ("match", "=x", E.INVALID_CONFIG),
    ],
)  # fmt: skip
def test_values_are_checked_as_in_kafka(name: str, value: str, code: E) -> None:
    found = E.NONE
    try:
        parse_subscription("s", {name: value})
    except KafkaError as error:
        found = E(error.code)
    assert found == code


def test_a_name_is_required():
    with pytest.raises(KafkaError, match="Subscription name can't be empty"):
        parse_subscription("", {})


def test_values_are_stored_as_kafka_describes_them():
    configs = {"interval.ms": " 200 ", "match": "client_id=x, client_id=x", "metrics": " a , b,a"}
    assert normalize(configs) == {"interval.ms": "200", "match": "client_id=x", "metrics": "a,b"}


def test_the_last_pattern_of_a_parameter_counts():
    patterns = parse_subscription("s", {"match": "client_id=x,client_source_port=1,client_id=y.*"}).patterns
    assert dict(patterns).keys() == {"client_id", "client_source_port"}
    assert run_to_end(dict(patterns)["client_id"].match("yes"))
    assert not run_to_end(dict(patterns)["client_id"].match("no"))


@pytest.mark.parametrize("pattern", ["(a{1,50}){1,50}", r"(a)\1", "(?=a)", "("])
def test_a_pattern_that_may_take_long_is_refused(pattern):
    with pytest.raises(KafkaError) as caught:
        parse_subscription("s", {"match": f"client_id={pattern}"})
    assert caught.value.code is E.INVALID_CONFIG


def test_a_nested_repetition_takes_linear_time():
    patterns = dict(parse_subscription("s", {"match": "client_id=(a+)+b"}).patterns)
    steps = patterns["client_id"].match("a" * 128)
    assert sum(1 for _ in steps) <= 200
