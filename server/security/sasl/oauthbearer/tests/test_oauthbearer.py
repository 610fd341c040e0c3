"""The messages of OAUTHBEARER."""

import pytest

from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.oauthbearer.claims import TokenError
from odradek.server.security.sasl.oauthbearer.exchange import INVALID_TOKEN, OAuthBearerExchange, parse_initial_response
from odradek.server.security.sasl.oauthbearer.jwt_validator import Claims


def make_exchange() -> OAuthBearerExchange:
    def validate(token: str) -> Claims:
        if token != "good":
            raise TokenError("it is not good")
        return Claims("al,ice", 5)

    return OAuthBearerExchange(validate)


def fail(exchange: OAuthBearerExchange, message: bytes) -> str | None:
    with pytest.raises(SaslError) as caught:
        exchange.evaluate(message)
    assert exchange.authenticated is None
    assert caught.value.reason
    return caught.value.message


def test_a_valid_token_authenticates_its_subject():
    exchange = make_exchange()
    assert exchange.evaluate(b"n,,\x01auth=Bearer good\x01\x01") == b""
    assert exchange.authenticated == ("al,ice", 5, False)


def test_a_refused_token_is_answered_by_a_challenge_and_then_fails():
    exchange = make_exchange()
    assert exchange.evaluate(b"n,,\x01auth=Bearer bad\x01\x01") == b'{"status":"invalid_token"}'
    assert exchange.authenticated is None
    assert fail(exchange, b"\x01") == INVALID_TOKEN


def test_no_second_token_follows_a_refused_one():
    exchange = make_exchange()
    exchange.evaluate(b"n,,\x01auth=Bearer bad\x01\x01")
    assert fail(exchange, b"n,,\x01auth=Bearer good\x01\x01") is None


def test_an_authorization_id_must_be_that_of_the_token():
    exchange = make_exchange()
    assert exchange.evaluate(b"n,a=al=2Cice,\x01auth=Bearer good\x01\x01") == b""
    message = fail(make_exchange(), b"n,a=bob,\x01auth=Bearer good\x01\x01")
    assert message is not None
    assert "(bob) that is different" in message


def test_the_message_about_an_authorization_id_is_short():
    """A response cannot contain a text of 32 KB, and the log should not."""
    message = fail(make_exchange(), b"n,a=" + b"b" * 33_000 + b",\x01auth=Bearer good\x01\x01")
    assert message is not None
    assert len(message) < 2_000


def test_extensions():
    exchange = make_exchange()
    exchange.evaluate(b"n,,\x01traceId=1-2 3\x01auth=Bearer good\x01logicalCluster=lkc=1\x01\x01")
    assert exchange.extensions == {"traceId": "1-2 3", "logicalCluster": "lkc=1"}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer good",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Bearer good\x01\x01\x01",
        b"n,,\x01auth=Bearer good\x01\x01x",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer go!od\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=good\x01\x01",
        b"n,,\x01auth\x01\x01",
        b"n,,\x01user=x\x01\x01",
        b"n,,\x01auth=Bearer good\x01k1=v\x01\x01",
        b"n,,\x01auth=Bearer good\x01=v\x01\x01",
        b"n,,\x01auth=Bearer good\x01key=\x01\x01",
        b"n,,\x01auth=Bearer good\x01key=\x7f\x01\x01",
        b"n,,\x01auth=Bearer good\x01key=\xc3\xa4\x01\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,b=x,\x01auth=Bearer good\x01\x01",
        b"n,a=,\x01auth=Bearer good\x01\x01",
        b"n,a=x=y,\x01auth=Bearer good\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer good\x01\x01",
        b"\xff\xff",
        b"n,," + b"\x01a=b" * 100_000,
    ],
)
def test_malformed_messages_fail(message):
    assert fail(make_exchange(), message) is None  # Kafka's message about invalid credentials


@pytest.mark.parametrize(("properties", "size_bytes"), [(256, 4), (1, 41_000)])
def test_long_messages_fail(properties, size_bytes):
    """Their check would hold the reactor, before the client is authenticated."""
    one = b"\x01a=".ljust(size_bytes, b"b")
    assert fail(make_exchange(), b"n,," + one * properties + b"\x01auth=Bearer good\x01\x01") is None


def test_the_scheme_is_case_insensitive_and_the_last_value_counts():
    response = parse_initial_response(b"n,,\x01auth=bad\x01auth=bEARER  ab-_~+/.==\x01\x01")
    assert response.token == "ab-_~+/.=="
    assert "ab-_" not in repr(response)


def test_a_message_after_success_fails():
    exchange = make_exchange()
    exchange.evaluate(b"n,,\x01auth=Bearer good\x01\x01")
    with pytest.raises(SaslError):
        exchange.evaluate(b"n,,\x01auth=Bearer good\x01\x01")
