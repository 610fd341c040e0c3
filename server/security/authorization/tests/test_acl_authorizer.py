"""The built-in authorizer: super users, cached decisions, and the audit log."""

import logging
from types import SimpleNamespace

import pytest

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclEntry, ResourcePattern
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.pauses import no_pause
from odradek.server.log_format import LineFormatter
from odradek.server.security.authorization import acl_authorizer, audit_log
from odradek.server.security.authorization.acl_authorizer import AclAuthorizer
from odradek.server.security.principal import ANONYMOUS, Principal

READ, WRITE, TOPIC = Operation.READ, Operation.WRITE, ResourceType.TOPIC
LOGGER = audit_log.logger.name


class Setup:
    def __init__(self, super_users=(), allows_without_acl=False):
        self.cache = AclCache(MemoryMetadataServer().connect(), lambda description, work: None, no_pause)
        self.now_ms = 0
        self.authorizer = AclAuthorizer(
            self.cache, super_users, allows_without_acl=allows_without_acl, monotonic_ms=lambda: self.now_ms
        )

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
    line = LineFormatter().format(caplog.records[-1])
    assert len(line) < 1000
    assert line.isprintable() and line.isascii()
    # Outside of quoted names there is no quotation mark that belongs to a name.
    assert line.count('" reason="') == 1 and line.endswith('reason="no ACL"')


def test_denials_beyond_the_rate_are_counted(setup, caplog, monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_DENIALS_PER_S", 3)
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(5):
            setup.authorizer.allows(client(), READ, TOPIC, "t")
        assert len(caplog.messages) == 3
        setup.now_ms += 1000
        setup.authorizer.allows(client(), READ, TOPIC, "t")
    assert caplog.messages[3:] == ["denials were not logged, because there were too many count=2", caplog.messages[0]]
