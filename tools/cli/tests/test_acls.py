"""`odradek acl`: the ACLs that its options stand for, and errors, which are found before the store is opened."""

import json
from types import SimpleNamespace

import pytest

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.controller.acl_changes import AclChanges
from odradek.replication.controller.events import EventLoop, ImmediateExecutor
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclEntry, ResourcePattern
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.pauses import no_pause
from odradek.server.store_tools import acls as store_acls
from odradek.server.stores.sqlite import StoreLockedError
from odradek.tools.cli.main import main

AUTHORIZER = "--override=authorizer.class.name=kafka.security.authorizer.AclAuthorizer"


@pytest.fixture
def acls(monkeypatch):
    """The ACLs of a store that the commands use."""
    store = MemoryMetadataServer().connect()
    run_now(prepare_store(store, "a-cluster"))
    environment = SimpleNamespace(now_ms=lambda: 0)
    monkeypatch.setattr(store_acls, "run_with_store", lambda config, work: run_now(work(store, environment)))
    monkeypatch.setattr(store_acls, "_ReactorExecutor", ImmediateExecutor)

    def load():
        cache = AclCache(store, lambda description, work: None, no_pause)
        run_now(AclChanges(store, cache, EventLoop(ImmediateExecutor()), lambda: 0).load())
        return cache.acls

    return load


def rules(principal, *operations, host="*", permission=Permission.ALLOW):
    return {AclEntry(principal, host, operation, permission) for operation in operations}


def run(*arguments):
    return main(["acl", *arguments, "--override=log.dirs=none"])


def test_add_for_several_principals_hosts_and_resources(acls, capsys):
    arguments = ["--allow-principal=User:a", "--allow-host=10.0.0.1", "--allow-host=::1", "--deny-principal=User:*"]
    assert run("add", *arguments, "--operation=read", "--operation=DESCRIBE_CONFIGS", "--topic=t", "--group=g") == 0
    operations = (Operation.READ, Operation.DESCRIBE_CONFIGS)
    expected = {
        *rules("User:a", *operations, host="10.0.0.1"),
        *rules("User:a", *operations, host="::1"),
        *rules("User:*", *operations, permission=Permission.DENY),
    }
    assert acls() == {
        ResourcePattern(ResourceType.TOPIC, "t"): expected,
        ResourcePattern(ResourceType.GROUP, "g"): expected,
    }
    assert len(capsys.readouterr().out.splitlines()) == 13


def test_producer_and_consumer(acls):
    assert run(
        "add", "--allow-principal=User:a", "--producer", "--consumer", "--idempotent", "--topic=t", "--group=g",
        "--transactional-id=x", "--resource-pattern-type=prefixed",
    ) == 0  # fmt: skip
    prefixed = PatternType.PREFIXED
    assert acls() == {
        ResourcePattern(ResourceType.TOPIC, "t", prefixed): rules(
            "User:a", Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
        ),
        ResourcePattern(ResourceType.GROUP, "g", prefixed): rules("User:a", Operation.READ),
        ResourcePattern(ResourceType.TRANSACTIONAL_ID, "x", prefixed): rules(
            "User:a", Operation.WRITE, Operation.DESCRIBE
        ),
        ResourcePattern(ResourceType.CLUSTER, "kafka-cluster"): rules("User:a", Operation.IDEMPOTENT_WRITE),
    }


def test_a_dry_run_shows_what_exists(acls, capsys):
    run("add", "--allow-principal=User:a", "--operation=Read", "--topic=t")
    before = acls()
    capsys.readouterr()
    operations = ["--operation=Read", "--operation=Write"]
    assert run("add", "--allow-principal=User:a", *operations, "--topic=t", "--dry-run", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["operation"]: row["exists"] for row in rows} == {"Read": True, "Write": False}
    assert acls() == before


def test_without_an_operation_all_are_allowed(acls):
    assert run("add", "--allow-principal=User:a", "--cluster") == 0
    assert acls() == {ResourcePattern(ResourceType.CLUSTER, "kafka-cluster"): rules("User:a", Operation.ALL)}


def test_the_authorizer_explains_its_decision(acls, capsys):
    run("add", "--allow-principal=User:a", "--allow-host=10.0.0.1", "--operation=Read", "--topic=t\u2028")
    capsys.readouterr()
    client = ["--principal=User:a", "--topic=t\u2028"]
    assert run("test", *client, "--host=10.0.0.1", "--operation=Describe", AUTHORIZER) == 0
    assert capsys.readouterr().out == "allowed: ALLOW Read for User:a from 10.0.0.1 on Topic:LITERAL:t\\u2028\n"
    assert run("test", *client, "--host=10.0.0.2", "--operation=Describe", AUTHORIZER) == 1
    assert capsys.readouterr().out == "denied: no matching ACL\n"
    everyone = "--override=allow.everyone.if.no.acl.found=true"
    asked = ["test", "--principal=User:a", "--host=::1", "--operation=Read", "--topic=other", AUTHORIZER]
    assert run(*asked) == 1
    assert run(*asked, everyone) == 0
    assert run(*asked, "--override=super.users=User:a") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "allowed: no ACL, and allow.everyone.if.no.acl.found is true",
        "allowed: super user",
    ]
    assert run(*asked[:-1]) == 0
    assert "authorizer.class.name is not set" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "--topic=t"], "specify --allow-principal or --deny-principal"),
        (["add", "--allow-principal=User:a"], "specify a resource"),
        (["add", "--allow-principal=a", "--topic=t"], "principalType:principalName but got a"),
        (["add", "--allow-principal=User:a", "--topic="], "--topic must not be empty"),
        (["add", "--allow-principal=User:a", "--topic=t", "--resource-pattern-type=match"], "literal or prefixed"),
        (
            ["add", "--allow-principal=User:a", "--topic=t", "--operation=Invented"],
            "there is no operation Invented; there are Any, All",
        ),
        (["add", "--allow-principal=User:a", "--group=g", "--operation=Write"], "Group has no operation Write, only"),
        (["add", "--deny-host=::1", "--allow-principal=User:a", "--topic=t"], "--deny-host requires --deny-principal"),
        (["add", "--allow-principal=User:a", "--producer"], "require --topic"),
        (["add", "--allow-principal=User:a", "--consumer", "--topic=t"], "--consumer requires --group"),
        (["add", "--allow-principal=User:a", "--producer", "--operation=Read", "--topic=t"], "exclude --operation"),
        (["add", "--allow-principal=User:a", "--idempotent", "--topic=t"], "--idempotent requires --producer"),
        (["delete"], "specify a resource"),
        (["list", "--principal=alice"], "principalType:principalName but got alice"),
        (["test", "--principal=User:a", "--host=::1", "--operation=Read"], "specify one resource"),
        (["test", "--principal=User:a", "--operation=Read", "--topic=t"], "missing option '--host'"),
        (["list", "--override=authorizer.class.name=x"], "Invalid value x for configuration authorizer.class.name"),
        (["list", "--store=no-such-file"], "cannot read no-such-file"),
        (["grant"], "there is no command grant"),
    ],
)
def test_an_error_is_reported_in_one_line(acls, capsys, arguments, message):
    assert run(*arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert acls() == {}


def test_a_test_while_the_broker_runs(monkeypatch, capsys):
    def refuse(config, work):
        raise StoreLockedError("locked")

    monkeypatch.setattr(store_acls, "run_with_store", refuse)
    arguments = ["--principal=User:a", "--host=::1", "--operation=Read", "--topic=t", AUTHORIZER]
    assert run("test", *arguments) == 1
    assert capsys.readouterr().err == (
        "odradek: the broker is running, with its metadata store open: stop it, or look at its rules with `odradek acl "
        "list`\n"
    )
