"""The built-in authorizer: super users, cached decisions, and the audit log."""

import logging
from types import SimpleNamespace

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclEntry, ResourcePattern
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.pauses import no_pause
from odradek.server.event_log.text_lines import MAX_NAME_LENGTH, TextFormatter
from odradek.server.security.authorization import acl_authorizer, audit_log
from odradek.server.security.authorization.acl_authorizer import AclAuthorizer
from odradek.server.security.principal import ANONYMOUS, Principal

READ, WRITE, TOPIC = Operation.READ, Operation.WRITE, ResourceType.TOPIC
LOGGER = audit_log.logger.name


class Setup:
    def __init__(self, super_users=(), allows_without_acl=False):
        self.cache = AclCache(MemoryMetadataServer().connect(), lambda description, work: None, no_pause)
        self.clock = Clock()
        self.authorizer = AclAuthorizer(
            self.cache,
            super_users,
            allows_without_acl=allows_without_acl,
            monotonic_ms=lambda: int(self.clock.seconds() * 1000),
            run_later=self.run_later,
        )

    def run_later(self, delay_ms, task):
        self.clock.callLater(delay_ms / 1000, lambda: Deferred.fromCoroutine(task()))

    def put(self, pattern, *entries):
        self.cache.put({pattern: frozenset(entries)})


@pytest.fixture
def setup():
    return Setup()


def client(name="alice", host="/10.0.0.7", **fields):
    return SimpleNamespace(principal=Principal("User", name, **fields), client_host=host)


def allow(principal="User:alice", host="*", operation=READ):
    return AclEntry(principal, host, operation, Permission.ALLOW)


def test_a_change_applies_to_the_next_request_and_changes_the_version(setup):
    pattern = ResourcePattern(TOPIC, "t")
    assert not setup.authorizer.allows(client(), READ, TOPIC, "t")
    versions = {setup.authorizer.version}
    setup.put(pattern, allow())
    assert setup.authorizer.allows(client(), READ, TOPIC, "t")
    assert setup.authorizer.allows_any(client(), READ, TOPIC)
    versions.add(setup.authorizer.version)
    setup.put(pattern)
    assert not setup.authorizer.allows(client(), READ, TOPIC, "t")
    assert not setup.authorizer.allows_any(client(), READ, TOPIC)
    versions.add(setup.authorizer.version)
    assert len(versions) == 3


def test_hosts_are_compared_without_the_slash(setup):
    setup.put(ResourcePattern(TOPIC, "t"), allow(host="10.0.0.7"))
    assert setup.authorizer.allows(client(), READ, TOPIC, "t")
    assert not setup.authorizer.allows(client(host="/10.0.0.8"), READ, TOPIC, "t")


@pytest.mark.parametrize("host", ["2001:db8:0:0:0:0:0:1", "2001:db8::1", "2001:0DB8::1"])
def test_an_ipv6_address_matches_in_each_of_its_forms(setup, host):
    setup.put(ResourcePattern(TOPIC, "t"), allow(host=host))
    assert setup.authorizer.allows(client(host="/2001:db8::1"), READ, TOPIC, "t")
    assert setup.authorizer.allows_any(client(host="/2001:db8::1"), READ, TOPIC)
    assert not setup.authorizer.allows(client(host="/2001:db8::2"), READ, TOPIC, "t")


def test_an_ipv4_address_matches_if_it_is_embedded_in_one_of_ipv6(setup):
    setup.put(ResourcePattern(TOPIC, "t"), allow(host="10.0.0.7"))
    assert setup.authorizer.allows(client(host="/::ffff:10.0.0.7"), READ, TOPIC, "t")


def test_super_users_are_allowed_everything_even_if_denied():
    setup = Setup(["User:alice", "User:CN=x,OU=y"])
    setup.put(ResourcePattern(TOPIC, "*"), AclEntry("User:*", "*", Operation.ALL, Permission.DENY))
    assert setup.authorizer.allows(client(), WRITE, TOPIC, "t")
    assert setup.authorizer.allows(client("CN=x,OU=y"), WRITE, TOPIC, "t")
    assert setup.authorizer.allows_any(client(), WRITE, TOPIC)
    # A token proves the identity as well as a password.
    assert setup.authorizer.allows(client(is_token_authenticated=True), WRITE, TOPIC, "t")
    assert not setup.authorizer.allows(client("Alice"), WRITE, TOPIC, "t")
    assert not setup.authorizer.allows(SimpleNamespace(principal=ANONYMOUS, client_host="/::1"), WRITE, TOPIC, "t")


def test_without_any_acl_everyone_may_be_allowed():
    setup = Setup(allows_without_acl=True)
    assert setup.authorizer.allows(client(), WRITE, TOPIC, "t")
    setup.put(ResourcePattern(TOPIC, "t", PatternType.PREFIXED), allow())
    assert not setup.authorizer.allows(client(), WRITE, TOPIC, "t")
    assert setup.authorizer.allows(client(), WRITE, TOPIC, "other")


def test_the_cache_of_decisions_is_bounded(setup, monkeypatch):
    monkeypatch.setattr(acl_authorizer, "MAX_CACHED", 10)
    for number in range(100):
        setup.authorizer.allows(client(), READ, TOPIC, f"t{number}", audits_denial=False)
        setup.authorizer.allows(client(), READ, TOPIC, "n" * 300 + str(number), audits_denial=False)
    cached = setup.authorizer._decisions
    assert 0 < len(cached) <= 10
    assert all(len(key[-1]) < 300 for key in cached)


def test_a_denial_has_one_line_and_a_permission_has_one_at_debug(setup, caplog):
    setup.put(ResourcePattern(TOPIC, "t"), allow())
    with caplog.at_level(logging.INFO, LOGGER):
        setup.authorizer.allows(client(), READ, TOPIC, "t")
        setup.authorizer.allows(client(), WRITE, TOPIC, "t")
        setup.authorizer.allows(client(), WRITE, TOPIC, "t")
        setup.authorizer.allows(client(), WRITE, TOPIC, "x", audits_denial=False)
        setup.authorizer.allows_any(client(), WRITE, TOPIC)
    line = 'Denied principal="User:alice" host=10.0.0.7 operation=Write resource=Topic:"t" reason="no matching ACL"'
    assert caplog.messages == [line, line, line.replace('Topic:"t"', "Topic:any")]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, LOGGER):
        setup.authorizer.allows(client(), READ, TOPIC, "t")
    assert caplog.messages == [
        'Allowed principal="User:alice" host=10.0.0.7 operation=Read resource=Topic:"t" '
        'reason="ALLOW Read for User:alice from * on Topic:LITERAL:t"'
    ]


def test_names_cannot_forge_a_line_or_a_part_of_it(setup, caplog):
    name = 'x" reason="none\r\n2026-01-01 INFO Allowed principal=\u2028\u202eroot' + "n" * 30_000
    with caplog.at_level(logging.INFO, LOGGER):
        setup.authorizer.allows(client(name), READ, ResourceType.GROUP, name)
    line = TextFormatter().format(caplog.records[-1])
    assert len(line) < 1000
    assert line.isprintable() and line.isascii()
    # Outside of quoted names there is no quotation mark that belongs to a name.
    assert line.count('" reason="') == 1 and line.endswith('reason="no ACL"')


OMITTED = "denials were not logged, because there were too many "


@pytest.fixture
def limits(monkeypatch):
    """At most 20 lines of all clients and 10 of each client in a second, and two first lines."""
    monkeypatch.setattr(audit_log, "MAX_DENIALS_PER_S", 20)
    monkeypatch.setattr(audit_log, "MAX_CLIENT_DENIALS_PER_S", 10)
    monkeypatch.setattr(audit_log, "FIRST_LINES", 2)
    monkeypatch.setattr(audit_log, "MAX_CLIENTS", 5)


@pytest.fixture
def denials(setup, limits, caplog):
    """Let clients be denied some times. Returns a function that counts the lines of each since its last call."""
    caplog.set_level(logging.INFO, LOGGER)

    def deny(times, **clients):
        caplog.clear()
        for name, host in clients.items():
            for _ in range(times):
                setup.authorizer.allows(client(name, f"/{host}"), READ, TOPIC, "t")
        texts = [message for message in caplog.messages if message.startswith("Denied")]
        return [sum(f'"User:{name}" host={host} ' in text for text in texts) for name, host in clients.items()]

    return deny


def test_denials_of_one_client_beyond_its_rate_are_counted(setup, denials, caplog):
    assert denials(15, mallory="10.0.0.1") == [10]
    setup.clock.advance(1)
    assert caplog.messages[10:] == [OMITTED + 'count=5 clients=1 others=0 most="User:mallory"@10.0.0.1:5']
    assert denials(10, mallory="10.0.0.1") == [10]
    setup.clock.advance(10)
    assert len(caplog.messages) == 10


def test_clients_do_not_displace_the_lines_of_others(setup, denials, caplog):
    assert denials(1000, mallory="10.0.0.1", trudy="10.0.0.2") == [10, 10]
    assert denials(4, alice="10.0.0.3") == [4]
    assert denials(5, bob="10.0.0.3", carol="10.0.0.4") == [4, 2]
    setup.clock.advance(1)
    most = '"User:mallory"@10.0.0.1:990,"User:trudy"@10.0.0.2:990,"User:carol"@10.0.0.4:3'
    expected = f"count=1984 clients=4 others=0 most={most}"
    assert caplog.messages[-1] == OMITTED + expected
    assert denials(5, bob="10.0.0.3") == [5]


def test_a_summary_precedes_the_first_denial_of_the_next_second(setup, denials, caplog):
    denials(11, mallory="10.0.0.1")
    setup.clock.rightNow += 1
    denials(1, alice="10.0.0.3")
    assert [message[: len(OMITTED)] == OMITTED for message in caplog.messages] == [True, False]
    setup.clock.advance(0)
    assert len(caplog.messages) == 2


def test_a_summary_does_not_end_the_present_second(setup, denials, caplog):
    setup.clock.rightNow = 0.9
    assert denials(11, mallory="10.0.0.1") == [10]
    setup.clock.rightNow = 1.5
    assert denials(11, mallory="10.0.0.1") == [10]
    setup.clock.advance(0.45)
    assert denials(11, mallory="10.0.0.1") == [0]
    setup.clock.advance(1)
    assert caplog.messages == [OMITTED + 'count=12 clients=1 others=0 most="User:mallory"@10.0.0.1:12']


def test_the_same_principal_at_another_address_is_another_client(denials):
    assert denials(12, alice="10.0.0.1") == [10]
    assert denials(2, alice="10.0.0.2") == [2]


def test_one_principal_with_many_addresses_does_not_displace_the_lines_of_others(setup, denials, caplog, monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_ADDRESSES", 3)
    for number in range(100):
        setup.authorizer.allows(client("mallory", f"/2001:db8::{number:x}"), READ, TOPIC, "t")
    assert sum("mallory" in message for message in caplog.messages) == 3 + 10
    assert denials(2, alice="10.0.0.1") == [2]
    setup.clock.advance(1)
    assert caplog.messages[-1] == OMITTED + 'count=87 clients=1 others=0 most="User:mallory"@*:87'


def test_the_number_of_distinguished_clients_is_bounded(setup, denials, caplog):
    clients = {f"u{number}": "10.0.0.1" for number in range(50)}
    # The first five have their own counts, the others have one together.
    assert denials(1, **clients) == [1] * 15 + [0] * 35
    log = setup.authorizer._audit_log
    assert len(log._counts) == 5
    setup.clock.advance(1)
    assert caplog.messages[-1] == OMITTED + "count=35 clients=0 others=35 most="
    assert log._counts == {}
    setup.authorizer.allows(client("n" * 30_000), READ, TOPIC, "t")
    assert all(len(principal) == MAX_NAME_LENGTH for principal, _ in log._counts)
