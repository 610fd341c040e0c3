"""The login of a broker at the KDC, which is replaced when its properties change."""

import pytest

pytest.importorskip("gssapi")

from odradek.server.security.sasl.kerberos import initiator
from odradek.server.security.sasl.kerberos.initiator import InitiatorSettings, KerberosInitiator


async def run_inline(work):
    work()


def make_initiator():
    return KerberosInitiator(InitiatorSettings("kafka/a", "FILE:a", "kafka", "a.jaas"), lambda: 0.0, run_inline)


def test_no_two_logins_have_the_same_tickets(monkeypatch):
    caches = []
    monkeypatch.setattr(initiator, "_log_in", lambda principal, keytab, cache: caches.append(cache))
    monkeypatch.setattr(initiator, "_begin_context", lambda credentials, service, host: (None, b""))
    current = make_initiator()
    for _ in range(100):
        with pytest.raises(StopIteration):
            current.make_exchange("b").begin().send(None)
        # The last one exists until the next one is made, as in a change of a broker's properties.
        current = make_initiator()
    assert len(set(caches)) == 100
