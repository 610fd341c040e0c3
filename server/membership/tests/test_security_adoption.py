"""Adoption of ACLs, users, quotas and tokens of Apache Kafka's metadata, on a memory store and by a broker process."""

import base64
import logging

import pytest

from odradek.log.storage.filesystem import OsFileSystem
from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, ResourcePattern
from odradek.replication.metadata.delegation_tokens import TokenCache
from odradek.replication.metadata.entity_configs import EntityConfigs
from odradek.replication.metadata.kraft_metadata import KraftMetadata
from odradek.replication.metadata.kraft_security import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ClientQuotaRecordEntityData,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from odradek.replication.metadata.memory_store import MemoryMetadataStore
from odradek.replication.metadata.store import run_now
from odradek.replication.metadata.znodes import decode_config
from odradek.replication.pauses import no_pause
from odradek.replication.tests import kraft
from odradek.replication.tests.kraft import framed
from odradek.server.config.loading import parse_config
from odradek.server.membership.security_adoption import adopt_security
from odradek.server.security.sasl.scram_credentials import parse_credential
from odradek.server.stores.sqlite import FILE_NAME, SqliteMetadataStore
from odradek.testing import OdradekBroker

A, B, C = (bytes(15) + name for name in (b"a", b"b", b"c"))
TOPIC, LITERAL, PREFIXED, READ, ALLOW, DENY = 2, 3, 4, 3, 3, 2
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


def acl(acl_id, name, principal="User:alice", pattern_type=LITERAL, operation=READ, permission=ALLOW):
    return AccessControlEntryRecord(
        id=acl_id, resource_type=TOPIC, resource_name=name, pattern_type=pattern_type, principal=principal, host="*",
        operation=operation, permission_type=permission,
    )  # fmt: skip


def credential(user, mechanism=1):
    return UserScramCredentialRecord(
        name=user, mechanism=mechanism, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
    )


def quota(key, value, *, remove=False, **entity):
    parts = [
        ClientQuotaRecordEntityData(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in entity.items()
    ]
    return ClientQuotaRecord(entity=parts, key=key, value=value, remove=remove)


def token(token_id, owner="User:alice"):
    return DelegationTokenRecord(
        owner=owner, requester="User:bob", renewers=["User:carol"], issue_timestamp=1, max_timestamp=3,
        expiration_timestamp=2, token_id=token_id,
    )  # fmt: skip


class Store:
    """A store in memory, as an adoption fills it."""

    def __init__(self):
        self.store = MemoryMetadataStore()
        self.store.is_shared = False
        run_now(prepare_store(self.store, "a-cluster"))

    def adopt(self, *records, properties=AUTHORIZER):
        metadata = KraftMetadata()
        for record in records:
            metadata.replay(framed(record))
        run_now(adopt_security(self.store, metadata.security, parse_config(properties).config, lambda: 1))
        return self

    def entities(self):
        entities = EntityConfigs(self.store, lambda description, work: None)
        run_now(entities.start())
        return entities.configs

    def acls(self):
        cache = AclCache(self.store, lambda description, work: None, no_pause)
        run_now(cache.start())
        return {AclBinding(pattern, entry) for pattern, entries in cache.acls.items() for entry in entries}

    def tokens(self):
        cache = TokenCache(self.store, lambda description, work: None, no_pause, b"key")
        run_now(cache.start())
        return cache.tokens


def binding(name, principal="User:alice", pattern_type=PatternType.LITERAL, permission=Permission.ALLOW):
    pattern = ResourcePattern(ResourceType.TOPIC, name, pattern_type)
    return AclBinding(pattern, AclEntry(principal, "*", Operation.READ, permission))


def test_the_acls_that_were_not_deleted_are_adopted():
    store = Store().adopt(
        acl(A, "t"),
        acl(B, "t", "User:bob", permission=DENY),
        acl(C, "gone"),
        acl(bytes(16), "../p%", pattern_type=PREFIXED),
        RemoveAccessControlEntryRecord(id=C),
    )
    assert store.acls() == {
        binding("t"),
        binding("t", "User:bob", permission=Permission.DENY),
        binding("../p%", pattern_type=PatternType.PREFIXED),
    }


def test_users_and_quotas_that_were_not_removed_are_adopted():
    store = Store().adopt(
        credential("alice"),
        credential("alice", 2),
        credential("a/b~"),
        RemoveUserScramCredentialRecord(name="alice", mechanism=2),
        quota("producer_byte_rate", 1024.0, user="alice"),
        quota("request_percentage", 12.5, user=None, client_id="app"),
        quota("consumer_byte_rate", 1.0, client_id=None),
        quota("connection_creation_rate", 7.0, ip="10.0.0.1"),
        quota("consumer_byte_rate", 5.0, user="gone"),
        quota("consumer_byte_rate", 0.0, remove=True, user="gone"),
    )
    entities = store.entities()
    text = entities["users/alice"].pop("SCRAM-SHA-256")
    assert parse_credential(text) == (b"salt", b"stored", b"server", 4096)
    assert entities.pop("users/a%2Fb%7E") == {"SCRAM-SHA-256": text}
    assert entities == {
        "users/alice": {"producer_byte_rate": "1024"},
        "users/<default>/clients/app": {"request_percentage": "12.5"},
        "clients/<default>": {"consumer_byte_rate": "1"},
        "ips/10.0.0.1": {"connection_creation_rate": "7"},
    }


def test_tokens_that_were_not_removed_are_adopted():
    tokens = Store().adopt(token("one"), token("two"), RemoveDelegationTokenRecord(token_id="two")).tokens()
    assert tokens == {"one": ("one", "User:alice", "User:bob", ("User:carol",), 1, 3, 2)}


def test_a_repeated_adoption_keeps_what_was_changed_since():
    store = Store()
    own = {"SCRAM-SHA-256": "set by odradek user"}
    run_now(change_entity(store.store, "users/alice", lambda before: own, lambda: 1))
    records = (credential("alice"), quota("producer_byte_rate", 9.0, user="alice"), acl(A, "t"), token("one"))
    store.adopt(*records)
    before = store.entities(), store.acls(), store.tokens()
    assert before[0] == {"users/alice": {**own, "producer_byte_rate": "9"}}
    store.adopt(*records, acl(B, "t", "User:bob"))
    assert (store.entities(), store.tokens()) == (before[0], before[2])
    assert store.acls() == {binding("t"), binding("t", "User:bob")}


def test_what_is_not_adopted_is_named_without_secrets(caplog):
    store = Store().adopt(
        acl(A, "t", operation=99, permission=DENY),
        acl(B, "u", principal="nobody"),
        credential("alice", 9),
        credential(".."),
        quota("cpu", 1.0, user="alice"),
        quota("producer_byte_rate", 1.0, group="g"),
        quota("producer_byte_rate", -1.0, user="alice"),
        token("not an id"),
    )
    assert store.entities() == {} and store.acls() == set() and store.tokens() == {}
    [line] = [one.message for one in caplog.records if one.levelno == logging.ERROR]
    assert line.startswith("metadata of Apache Kafka is not adopted") and "count=8:" in line
    assert "credential of user 'alice' with mechanism 9" in line and "quota cpu=1" in line
    assert not any(base64.b64encode(secret).decode() in line for secret in (b"salt", b"stored", b"server"))


@pytest.mark.parametrize(("properties", "warns"), [(AUTHORIZER, False), ({}, True)])
def test_acls_without_an_authorizer_are_adopted_with_a_warning(caplog, properties, warns):
    store = Store().adopt(acl(A, "t"), properties=properties)
    assert store.acls() == {binding("t")}
    assert ("set authorizer.class.name count=1" in caplog.text) == warns


JAAS = "listener.name.tls.scram-sha-256.sasl.jaas.config"
PASSWORD = "listener.name.tls.ssl.keystore.password"


@pytest.fixture
def broker(tmp_path):
    """A broker that is not started, on a directory that Apache Kafka has left."""
    broker = OdradekBroker({"log.dirs.adopt": "true", **AUTHORIZER}, directory=tmp_path)
    records = [
        *kraft.topic("t", A),
        kraft.config(kraft.BROKER, "1", PASSWORD, "hunter2"),
        kraft.config(kraft.BROKER, "1", JAAS, "Module required user_a=hunter2;"),
        kraft.config(kraft.BROKER, "1", "log.cleaner.threads", "2"),
        acl(A, "t"),
        credential("alice"),
        quota("producer_byte_rate", 1024.0, user="alice"),
        token("one"),
    ]
    kraft.put_log(OsFileSystem(), records, log_directory=str(broker.data_dir))
    yield broker
    broker.close()


def stored(broker):
    """The nodes of the store, by path."""
    store = SqliteMetadataStore(broker.data_dir, lambda: 1)
    try:
        paths = ("/config/brokers/1", "/config/users/alice", "/kafka-acl/Topic/t", "/delegation_token/tokens/one")
        return {path: node and node.data for path, node in zip(paths, run_now(store.get_many(paths)), strict=True)}
    finally:
        run_now(store.close())


def test_a_broker_adopts_them_once(broker):
    broker.start()
    broker.stop()
    before = stored(broker)
    assert None not in before.values()
    assert "entities=1 acls=1 tokens=1" in broker.log_text()
    store = SqliteMetadataStore(broker.data_dir, lambda: 1)
    run_now(store.delete("/kafka-acl/Topic/t"))
    run_now(store.close())
    broker.start()
    broker.stop()
    assert stored(broker) == {**before, "/kafka-acl/Topic/t": None}


def test_passwords_are_adopted_encrypted_or_named(broker):
    broker.properties["password.encoder.secret"] = "a secret"
    broker.start()
    broker.stop()
    configs = decode_config(stored(broker)["/config/brokers/1"])
    assert configs["log.cleaner.threads"] == "2"
    assert all(configs[name].startswith("keyFactoryAlgorithm:") for name in (PASSWORD, JAAS))
    assert b"hunter2" not in (broker.data_dir / FILE_NAME).read_bytes()
    assert "hunter2" not in broker.log_text()
    assert "not adopted" not in broker.log_text()


def test_without_an_encryption_passwords_are_not_adopted(broker):
    broker.start()
    broker.stop()
    assert decode_config(stored(broker)["/config/brokers/1"]) == {"log.cleaner.threads": "2"}
    [line] = [line for line in broker.log_text().splitlines() if "not adopted" in line]
    assert f"passwords of Apache Kafka are not adopted names={JAAS},{PASSWORD}: " in line
    assert "configuration password.encoder.secret: must be set" in line
    assert "hunter2" not in broker.log_text()


def test_without_the_metadata_the_loss_of_acls_and_users_is_reported(broker):
    broker.start()
    broker.stop()
    (broker.data_dir / FILE_NAME).unlink()
    broker.start()
    broker.stop()
    assert "ACLs, users, quotas and delegation tokens of the previous metadata are not adopted" in broker.log_text()
