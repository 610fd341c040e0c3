"""Mechanisms that are made again when their properties change."""

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from odradek.log.background.tasks import RunInThread, run_inline
from odradek.properties import PropertyError
from odradek.server.config import BrokerConfig
from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.mechanisms import MechanismParts
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import (
    CLAIMS,
    make_jwk,
    make_key_set,
    private_key,
    sign,
)
from odradek.server.security.sasl.reloaded_mechanisms import ReloadedMechanisms
from odradek.server.security.sasl.settings import SaslSettings, make_sasl_settings

PREFIX = "listener.name.sasl_plaintext."
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
URL = f"{PREFIX}oauthbearer.sasl.oauthbearer.jwks.endpoint.url"


def make_settings(mechanisms: str, **values: str) -> SaslSettings:
    """Return the settings of a listener. `values`: login modules by the mechanism's name, and other properties."""
    texts = {name if "." in name else f"{PREFIX}{name}.sasl.jaas.config": value for name, value in values.items()}
    config = BrokerConfig({
        "listeners": "SASL_PLAINTEXT://:9092",
        f"{PREFIX}sasl.enabled.mechanisms": mechanisms,
        **texts,
    })  # fmt: skip
    return make_sasl_settings(config, "SASL_PLAINTEXT")


class Setup:
    def __init__(self, mechanisms: str, **values: str) -> None:
        self.clock = Clock()
        self.run_in_thread: RunInThread = run_inline
        nothing: Any = None
        parts = MechanismParts(
            dict, nothing, nothing, nothing, lambda: CLAIMS["iat"] * 1000, self.clock.seconds, self.clock.callLater,
            lambda work, done: self.run_in_thread(work, done), nothing,
        )  # fmt: skip
        self.mechanisms = ReloadedMechanisms(make_settings(mechanisms, **values), parts)

    def update(self, mechanisms: str, **values: str) -> None:
        self.mechanisms.update(make_settings(mechanisms, **values))

    def accepts(self, password: str) -> bool:
        try:
            self.mechanisms.by_name["PLAIN"].make_exchange().evaluate(b"\0alice\0" + password.encode())
        except SaslError:
            return False
        return True

    def accepts_token(self) -> bool:
        exchange = self.mechanisms.by_name["OAUTHBEARER"].make_exchange()
        exchange.evaluate(f"n,,\x01auth=Bearer {sign(private_key('ES256'), 'ES256')}\x01\x01".encode())
        return exchange.authenticated is not None


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """The URL of the keys of an issuer."""
    path = tmp_path / "keys.json"
    path.write_bytes(make_key_set(make_jwk(private_key("ES256"), "ES256")))
    return path.as_uri()


def test_only_changed_mechanisms_are_made_again() -> None:
    setup = Setup("PLAIN,SCRAM-SHA-256", plain=f'{PLAIN} user_alice="one";')
    before = setup.mechanisms.by_name
    setup.update("PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", plain=f'{PLAIN} user_alice="two";')
    after = setup.mechanisms.by_name
    assert list(after) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert after["SCRAM-SHA-256"] is before["SCRAM-SHA-256"]
    assert after["PLAIN"] is not before["PLAIN"]
    assert not setup.accepts("one") and setup.accepts("two")
    setup.update("PLAIN", plain=f"{PLAIN} user_alice=two ;")
    assert setup.mechanisms.by_name["PLAIN"] is after["PLAIN"], "the same options in another form"
    assert list(setup.mechanisms.by_name) == ["PLAIN"]


def test_the_last_mechanisms_remain_if_new_ones_are_not_valid(caplog: pytest.LogCaptureFixture, keys: str) -> None:
    setup = Setup("PLAIN", plain=f'{PLAIN} user_alice="one";')
    before = setup.mechanisms.by_name
    setup.update("OAUTHBEARER,PLAIN", **{URL: keys})
    assert setup.mechanisms.by_name is before
    assert "changed SASL mechanisms are not used, and the last ones remain" in caplog.text
    assert not setup.clock.getDelayedCalls(), "the keys of the issuer are not read again"
    with pytest.raises(PropertyError):
        Setup("PLAIN")


def test_the_background_work_of_former_mechanisms_ends(keys: str) -> None:
    setup = Setup("OAUTHBEARER", **{URL: keys})
    [first] = setup.clock.getDelayedCalls()
    setup.update("OAUTHBEARER", oauthbearer=f"{OAUTH};", **{URL: keys})
    [second] = setup.clock.getDelayedCalls()
    assert second is not first
    setup.update("OAUTHBEARER", oauthbearer=f"{OAUTH} ;", **{URL: keys})
    assert setup.clock.getDelayedCalls() == [second]
    setup.update("SCRAM-SHA-256")
    assert not setup.clock.getDelayedCalls()
    setup.update("OAUTHBEARER", **{URL: keys})
    assert setup.clock.getDelayedCalls()
    setup.mechanisms.stop()
    assert not setup.clock.getDelayedCalls()


def test_tokens_are_accepted_while_a_mechanism_that_is_made_again_reads_the_keys(keys: str) -> None:
    setup = Setup("OAUTHBEARER", **{URL: keys})
    assert setup.accepts_token()
    setup.run_in_thread = lambda work, done: None
    setup.update("OAUTHBEARER", oauthbearer=f"{OAUTH} clientSecret=changed;", **{URL: keys})
    assert setup.accepts_token(), "the issuer has not responded yet"
    setup.update("SCRAM-SHA-256")
    setup.update("OAUTHBEARER", **{URL: keys})
    assert not setup.accepts_token(), "the keys of a mechanism that was disabled are not used"
