"""`odradek token`, compared with kafka-delegation-tokens."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from compat_tests import processes
from compat_tests.apache_kafka import tools
from compat_tests.backends import BROKERS
from compat_tests.clients.common import wait_until
from compat_tests.conftest import SHARED_PROPERTIES
from compat_tests.sasl_users import SCRAM_MODULE
from compat_tests.token_logins import Login, Token, read_tokens
from compat_tests.tools.conftest import Done
from compat_tests.tools.eventually import eventually

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

TOKENS = tools.DELEGATION_TOKENS
USERS = ("alice", "bob")
EXPIRY_MS = 600_000
LONGEST_MS = 7 * 86_400_000
PROPERTIES = {
    **SHARED_PROPERTIES,
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "delegation.token.secret.key": "the secret of all brokers",
    "delegation.token.expiry.time.ms": str(EXPIRY_MS),
    "delegation.token.max.lifetime.ms": str(LONGEST_MS),
}


@pytest.fixture(scope="module")
def broker(backend, kafka_jars):
    """A broker with a listener of SASL, which is its address; `plain` is the address of another one."""
    plain, sasl, controller = processes.lasting_ports(3)
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    properties = {**PROPERTIES, "listeners": listeners}
    if backend == "kafka":
        properties |= {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        }
    with BROKERS[backend](properties):
        address = f"127.0.0.1:{plain}"
        for user in USERS:
            change = ["--alter", "--entity-type", "users", "--entity-name", user]
            credential = f"SCRAM-SHA-512=[password={user}-secret]"
            tools.run(tools.CONFIGS, "--bootstrap-server", address, *change, "--add-config", credential)
        yield SimpleNamespace(bootstrap_servers=f"127.0.0.1:{sasl}", plain=address)


@pytest.fixture
def logins(broker, tmp_path):
    """The logins of the users, by name."""
    found = {}
    for user in USERS:
        (tmp_path / user).mkdir()
        found[user] = Login(broker.bootstrap_servers, tmp_path / user, user, f"{user}-secret")
        wait_until(found[user].is_accepted, what=f"the login of {user}")
    return found


@pytest.fixture
def token(odradek, logins):
    """Run `odradek token` as a user."""

    def run(user: str, *arguments: str, **options: int):
        file = str(logins[user].write_properties())
        return odradek("token", *arguments, "--command-config", file, **options)

    return run


def create_by_tool(login: Login, *arguments: str) -> Token:
    [created] = read_tokens(login.run(TOKENS, "--create", *arguments).stdout)
    return created


def list_by_tool(login: Login, *owners: str) -> list[Token]:
    options = [part for owner in owners for part in ("--owner-principal", owner)]
    return sorted(read_tokens(login.run(TOKENS, "--describe", *options).stdout))


def to_minute(time_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.localtime(time_ms / 1000))


def as_row(listed: dict[str, Any], hmac: str) -> Token:
    """Return a token in a list of the command, which hides the HMAC, as a row of the tool."""
    times = (to_minute(listed[key]) for key in ("issued_ms", "expires_ms", "max_ms"))
    renewers = ", ".join(listed["renewers"])
    return Token(listed["token_id"], hmac, listed["owner"], listed["requester"], f"[{renewers}]", *times)


def await_tokens(token: Callable[..., Done], login: Login, owner: str, ids: set[str]) -> list[Token]:
    """Wait until the tool shows these tokens for an owner, and the command the same rows; return them."""
    found: list[Token] = []

    def check() -> None:
        by_tool = list_by_tool(login, owner)
        rows = token(login.name, "list", "--owner-principal", owner, "--json").json
        hmacs = {one.token_id: one.hmac for one in by_tool}
        assert {row["token_id"] for row in rows} == set(hmacs) == ids
        assert [as_row(row, hmacs[row["token_id"]]) for row in rows] == by_tool
        found[:] = by_tool

    eventually(check)
    return found


def test_tokens_are_created_and_listed(token, logins, unique):
    alice, bob = logins["alice"], logins["bob"]
    owner, renewer = f"User:{unique}", f"User:{unique}-renewer"
    options = ["--owner-principal", owner, "--renewer-principal", renewer, "--renewer-principal", "User:bob"]
    own = token("alice", "create", *options, "--max-life-time", "1h", "--json").json
    by_tool = create_by_tool(alice, *options, "--max-life-time-period", "3600000")
    assert own["max_ms"] - own["issued_ms"] == 3_600_000
    assert own["expires_ms"] - own["issued_ms"] == EXPIRY_MS
    ids = {own["token_id"], by_tool.token_id}
    rows = await_tokens(token, alice, owner, ids)
    by_id = {row.token_id: row for row in rows}
    assert by_id[by_tool.token_id] == by_tool
    assert by_id[own["token_id"]].hmac == own["hmac"]
    for row in rows:
        assert (row.owner, row.requester) == (owner, "User:alice")
        assert set(row.renewers.strip("[]").split(", ")) == {renewer, "User:bob"}
    # The requester and the renewers of a token select it too.
    assert await_tokens(token, bob, renewer, ids) == rows
    selected = {row["token_id"] for row in token("bob", "list", "--owner-principal", "User:alice", "--json").json}
    assert selected == {row.token_id for row in list_by_tool(bob, "User:alice")} >= ids
    every = token("bob", "list", "--json")
    assert ids <= {row["token_id"] for row in every.json}
    assert own["hmac"] not in every.out and by_tool.hmac not in every.out
    assert list_by_tool(bob, f"{owner}x") == token("bob", "list", "--owner-principal", f"{owner}x", "--json").json == []


def test_the_lifetime_that_brokers_choose(token, logins, unique):
    own = token("alice", "create", "--owner-principal", f"User:{unique}", "--json").json
    create_by_tool(logins["alice"], "--owner-principal", f"User:{unique}", "--max-life-time-period", "-1")
    assert (own["max_ms"] - own["issued_ms"], own["expires_ms"] - own["issued_ms"]) == (LONGEST_MS, EXPIRY_MS)

    def check() -> None:
        first, second = list_by_tool(logins["alice"], f"User:{unique}")
        minutes = [time.mktime(time.strptime(one, "%Y-%m-%dT%H:%M")) / 60 for one in (first.latest, second.latest)]
        assert abs(minutes[0] - minutes[1]) <= 1 and first.renewers == second.renewers == "[]"

    eventually(check)


def test_a_token_is_renewed_and_expired(token, logins, unique):
    """The command and the tool do the same with a token each; its login works until it has expired."""
    alice, bob, owner = logins["alice"], logins["bob"], f"User:{unique}"
    options = ["--owner-principal", owner, "--renewer-principal", "User:bob", "--max-life-time-period", "86400000"]
    own, other = create_by_tool(alice, *options), create_by_tool(alice, *options)
    await_tokens(token, alice, owner, {own.token_id, other.token_id})
    job, other_job = alice.as_token(own), alice.as_token(other)
    wait_until(job.is_accepted)
    wait_until(other_job.is_accepted)

    # Brokers shorten a period to delegation.token.expiry.time.ms.
    for period, expected_ms in (("5h", EXPIRY_MS), ("5m", 300_000)):
        planned = token("bob", "renew", own.hmac, "--period", period, "--dry-run", "--json").json
        renewed = token("bob", "renew", own.hmac, "--period", period, "--json").json
        assert abs(renewed["expires_ms"] - time.time() * 1000 - expected_ms) < 60_000
        assert abs(planned["changes"][0]["new_expires_ms"] - renewed["expires_ms"]) < 10_000
    shown = bob.run(TOKENS, "--renew", "--renew-time-period", "300000", "--hmac", other.hmac).stdout
    assert "Completed renew operation" in shown and to_minute(renewed["expires_ms"])[:10] in shown

    def check_renewed() -> None:
        rows = {row.token_id: row for row in list_by_tool(alice, owner)}
        assert rows[own.token_id].expires == to_minute(renewed["expires_ms"])
        expires_ms = {
            row["token_id"]: row["expires_ms"]
            for row in token("alice", "list", "--owner-principal", owner, "--json").json
        }
        assert expires_ms[own.token_id] == renewed["expires_ms"]
        assert abs(expires_ms[other.token_id] - renewed["expires_ms"]) < 60_000
        assert rows[other.token_id].expires == to_minute(expires_ms[other.token_id])

    eventually(check_renewed)
    assert "Repeat the command with --yes" in token("bob", "expire", own.hmac, code=2).err
    assert token("bob", "expire", own.hmac, "--yes").out == f"token {own.hmac[:6]}... expired\n"
    bob.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", other.hmac)
    await_tokens(token, alice, owner, set())
    wait_until(job.is_refused)
    wait_until(other_job.is_refused)


def test_refusals(token, odradek, broker, logins, unique):
    alice, owner = logins["alice"], f"User:{unique}"
    created = create_by_tool(alice, "--owner-principal", owner, "--max-life-time-period", "-1")
    await_tokens(token, alice, owner, {created.token_id})
    unknown = created.hmac[::-1].lstrip("=").ljust(88, "A")
    for hmac, error, code in (
        # The requester of a token may see it, but not renew or expire it.
        (created.hmac, "DelegationTokenOwnerMismatchException", "DELEGATION_TOKEN_OWNER_MISMATCH"),
        (unknown, "DelegationTokenNotFoundException", "DELEGATION_TOKEN_NOT_FOUND"),
    ):
        for action, own, period in (
            ("renew", ["renew", hmac], "--renew-time-period"),
            ("expire", ["expire", hmac, "--yes"], "--expiry-time-period"),
        ):
            assert error in alice.refusal(TOKENS, f"--{action}", period, "-1", "--hmac", hmac)
            [refused] = token("alice", *own, "--json", code=1).errors
            assert refused["code"] == code
    job = alice.as_token(created)
    wait_until(job.is_accepted)
    file = str(job.write_properties())
    for arguments in (["create"], ["create", "--dry-run"], ["list"]):
        [refused] = odradek("token", *arguments, "--command-config", file, "--json", code=1).errors
        assert refused["code"] == "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
    assert token("alice", "renew", "x", code=2).err == "odradek: the HMAC is not Base64\n"
    assert "alice is not Type:name" in token("alice", "list", "--owner-principal", "alice", code=2).err


def test_dry_runs(token, logins, unique):
    alice, owner = logins["alice"], f"User:{unique}"
    options = ["--owner-principal", owner, "--renewer-principal", "User:bob", "--max-life-time", "1d"]
    planned = token("alice", "create", *options, "--dry-run", "--json").json
    assert (planned["dry_run"], planned["results"]) == (True, [{"token": "(new)", "error": None}])
    assert planned["changes"] == [{"owner": owner, "renewers": ["User:bob"], "max_life_ms": 86_400_000}]
    assert token("alice", "create", "--dry-run").out.endswith("\ntoken (new) would be created\n")
    assert list_by_tool(alice, owner) == []

    created = create_by_tool(alice, *options[:4], "--max-life-time-period", "86400000")
    [before] = await_tokens(token, alice, owner, {created.token_id})
    for command, verb, options, after_ms in (
        ("renew", "renewed", ["--period", "2m"], 120_000),
        ("renew", "renewed", ["--period", "2h"], EXPIRY_MS),
        ("renew", "renewed", [], EXPIRY_MS),
        ("expire", "expired", ["--period", "2h"], 7_200_000),
        ("expire", "expired", [], 0),
    ):
        shown = token("bob", command, created.hmac, *options, "--dry-run", "--json")
        assert created.hmac not in shown.out and shown.json["action"] == verb
        [change] = shown.json["changes"]
        assert (change["token_id"], change["owner"]) == (created.token_id, owner)
        assert to_minute(change["expires_ms"]) == before.expires
        assert abs(change["new_expires_ms"] - (time.time() * 1000 + after_ms)) < 60_000
    [change] = token("bob", "expire", created.hmac, "--period", "9d", "--dry-run", "--json").json["changes"]
    assert to_minute(change["new_expires_ms"]) == before.latest
    missing = token("bob", "renew", "AAAA", "--dry-run", code=1).err
    assert missing == token("bob", "renew", "AAAA", code=1).err == "odradek: DELEGATION_TOKEN_NOT_FOUND\n"
    assert list_by_tool(alice, owner) == [before]
