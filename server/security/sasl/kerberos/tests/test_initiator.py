"""The login of a broker at the KDC, which is replaced when its properties change."""

from contextlib import suppress

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

pytest.importorskip("gssapi")

from odradek.server.security.sasl.kerberos import initiator
from odradek.server.security.sasl.kerberos.initiator import InitiatorSettings, KerberosInitiator
from odradek.server.security.sasl.kerberos.keytab import KerberosError
from odradek.server.security.sasl.mechanism import SaslError


def make_initiator(clock):
    async def run_later(work):
        # A turn of the reactor, in which other exchanges begin to wait.
        turn = Deferred()
        clock.callLater(0, turn.callback, None)
        await turn
        work()

    return KerberosInitiator(InitiatorSettings("kafka/a", "FILE:a", "kafka", "a.jaas"), clock.seconds, run_later)


def begin(made, clock, *hosts):
    """Begin exchanges with hosts; return the times at which they had their first token or failed."""
    times = []

    async def run(host):
        with suppress(SaslError):
            await made.make_exchange(host).begin()
        times.append((host, clock.seconds()))

    for host in hosts:
        Deferred.fromCoroutine(run(host))
    while len(times) < len(hosts):
        clock.advance(0)
    return times


def test_no_two_logins_have_the_same_tickets(monkeypatch):
    caches, clock = [], Clock()
    monkeypatch.setattr(initiator, "log_in", lambda principal, keytab, cache: caches.append(cache))
    monkeypatch.setattr(initiator, "begin_context", lambda credentials, service, host: (None, b""))
    current = make_initiator(clock)
    for _ in range(100):
        begin(current, clock, "b")
        # The last one exists until the next one is made, as in a change of a broker's properties.
        current = make_initiator(clock)
    assert len(set(caches)) == 100


def test_exchanges_with_one_host_that_has_no_ticket_fail_together(monkeypatch):
    clock = Clock()

    def begin_context(credentials, service, host):
        if host == "new":
            # The KDC does not respond.
            clock.rightNow += 25
            raise KerberosError("no answer")
        return None, b""

    monkeypatch.setattr(initiator, "log_in", lambda principal, keytab, cache: None)
    monkeypatch.setattr(initiator, "begin_context", begin_context)
    made = make_initiator(clock)
    assert begin(made, clock, "new", "new", "new", "known") == [("new", 25)] * 3 + [("known", 25)]
    assert begin(made, clock, "new", "known") == [("new", 50), ("known", 50)]


def test_a_thread_that_cannot_be_started():
    async def refuse(work):
        raise RuntimeError("can't start new thread")

    settings = InitiatorSettings("kafka/a", "FILE:a", "kafka", "a.jaas")
    exchange = KerberosInitiator(settings, Clock().seconds, refuse).make_exchange("b")
    with pytest.raises(SaslError, match="can't start new thread"):
        exchange.begin().send(None)
