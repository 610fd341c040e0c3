"""SCRAM and PLAIN exchanges, credentials and users, without a network."""

import base64
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.entity_configs import EntityConfigs
from odradek.replication.metadata.entity_names import desanitize_name, sanitize_name
from odradek.replication.metadata.memory_store import MemoryMetadataServer, MemoryMetadataStore
from odradek.replication.metadata.scram_secret import PATH, load_secret
from odradek.replication.tests.support import lose_next_response
from odradek.server.security.sasl.client import ScramClientExchange
from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.plain import PlainExchange, find_users
from odradek.server.security.sasl.scram import ScramExchange
from odradek.server.security.sasl.scram_credentials import (
    SCRAM_MECHANISMS,
    CredentialForm,
    ScramCredential,
    ScramMechanism,
    find_form,
    format_credential,
    make_credential,
    make_salt,
    parse_credential,
)
from odradek.server.security.sasl.scram_users import (
    Deletion,
    DescribedUser,
    ScramUsers,
    Upsertion,
    describe_in_steps,
    describe_users,
)
from odradek.server.security.sasl.unknown_users import UnknownUsers
from odradek.server.work.slices import run_first_steps

SHA256, SHA512 = SCRAM_MECHANISMS.values()


def credential(mechanism: ScramMechanism, password: str, salt: bytes = b"salt") -> ScramCredential:
    return make_credential(mechanism, salt, mechanism.salt_password(password, salt, 4096), 4096)


def run(coroutine: Any) -> Any:
    """Run a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


class Exchange:
    """Both sides of an authentication. `change`: changes the tokens of the client."""

    def __init__(
        self,
        mechanism: ScramMechanism = SHA256,
        user: str = "alice",
        password: str = "secret",
        change: Callable[[bytes], bytes] = bytes,
        found: ScramCredential | None = None,
    ) -> None:
        found = found or credential(mechanism, "secret")
        users = {"alice": found, "a=b,c": found}
        unknown = UnknownUsers(b"process")
        bits = random.Random(1).getrandbits
        self.server = ScramExchange(mechanism, users.get, unknown, bits)

        async def salt_password(mechanism: ScramMechanism, salt: bytes, iterations: int) -> bytes:
            return mechanism.salt_password(password, salt, iterations)

        self.client = ScramClientExchange(mechanism, user, "nonce", salt_password)
        self.change = change

    def run(self) -> None:
        token = run(self.client.begin())
        while token is not None:
            token = run(self.client.answer(self.server.evaluate(self.change(token))))


@pytest.mark.parametrize("mechanism", [SHA256, SHA512])
@pytest.mark.parametrize("user", ["alice", "a=b,c"])
def test_the_right_password(mechanism: ScramMechanism, user: str) -> None:
    exchange = Exchange(mechanism, user)
    exchange.run()
    assert exchange.server.authenticated == (user, None, False)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    found = credential(SHA256, "pencil", salt)
    server = ScramExchange(SHA256, {"user": found}.get, UnknownUsers(b""), lambda bits: 0)
    client_nonce, server_nonce = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server.evaluate(f"n,,n=user,r={client_nonce}".encode())
    # The nonce of the broker is random: replace it by that of the example.
    server._nonce = client_nonce + server_nonce
    server._messages = (
        f"n=user,r={client_nonce},r={client_nonce}{server_nonce},s={base64.b64encode(salt).decode()},i=4096".encode()
    )
    final = f"c=biws,r={client_nonce}{server_nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert server.evaluate(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", [SHA256, SHA512])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret")])
def test_an_unknown_user_fails_like_a_wrong_password(mechanism: ScramMechanism, user: str, password: str) -> None:
    exchange = Exchange(mechanism, user, password)
    first = exchange.server.evaluate(run(exchange.client.begin()))
    final = run(exchange.client.answer(first))
    with pytest.raises(SaslError) as caught:
        exchange.server.evaluate(final)
    assert (caught.value.message, caught.value.reason) == (None, "wrong password, or unknown user")
    assert exchange.server.authenticated is None


def test_an_unknown_user_has_the_same_salt_at_each_broker_and_after_a_restart() -> None:
    store = MemoryMetadataServer().connect()
    secrets = [run(load_secret(store, random.Random(number).randbytes)) for number in (1, 2)]
    assert secrets[0] == secrets[1] == random.Random(1).randbytes(32)
    made = [UnknownUsers(secret).make_credential(SHA256, user) for secret in secrets for user in ("a", "b")]
    assert made[:2] == made[2:]
    assert made[0].salt != made[1].salt
    assert all(20 <= len(one.salt) <= 26 for one in made)
    assert UnknownUsers(b"of another cluster").make_credential(SHA256, "a").salt != made[0].salt
    assert UnknownUsers(secrets[0]).make_credential(SHA512, "a").salt != made[0].salt


@pytest.mark.parametrize(
    ("before", "hint"), [("nonce", ": update librdkafka, which sends it before version 2.6.1"), ("", "")]
)
def test_a_wrong_nonce(before: str, hint: str) -> None:
    exchange = Exchange(SHA256, "alice", "secret")
    first = exchange.server.evaluate(run(exchange.client.begin())).decode()
    nonce = first.partition(",")[0].removeprefix("r=")
    with pytest.raises(SaslError) as caught:
        exchange.server.evaluate(f"c=biws,r={before}{nonce if before else 'other'},p=AAAA".encode())
    assert caught.value.reason == f"SCRAM client-final message has another nonce{hint}"


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_damaged_secret_is_not_used(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryMetadataServer().connect()
    run(store.create(PATH, content))
    assert run(load_secret(store, random.Random(1).randbytes)) == random.Random(1).randbytes(32)
    assert "is damaged" in caplog.text


def test_a_known_and_an_unknown_token_have_the_same_salt_which_is_not_that_of_a_user() -> None:
    unknown = UnknownUsers(b"secret")
    assert unknown.make_token_credential(SHA256, "id").salt == unknown.make_token_salt(SHA256, "id")
    assert unknown.make_token_salt(SHA256, "id") != unknown.make_credential(SHA256, "id").salt


def make_text(iterations: int) -> str:
    return format_credential(ScramCredential(b"salt", b"key", b"key", iterations))


def test_unknown_users_have_iterations_like_the_real_ones() -> None:
    unknown, names = UnknownUsers(b"secret"), [f"name{number}" for number in range(1000)]

    def count(mechanism: ScramMechanism = SHA256) -> Counter[int]:
        return Counter(unknown.make_credential(mechanism, name).iterations for name in names)

    assert count() == {4096: 1000}
    users = {f"users/u{number}": {SHA256.name: make_text(8192)} for number in range(90)}
    unknown.update(users)
    assert (count(), count(SHA512)) == ({8192: 1000}, {4096: 1000})
    unknown.update({f"users/v{number}": {SHA256.name: make_text(10_000)} for number in range(30)})
    assert 200 < count()[10_000] < 300 and count().total() == count()[10_000] + count()[8192]
    # A user of quotas, of a client id, a repeated and a changed credential, and a removed one.
    unknown.update({**users, "users/w": {"consumer_byte_rate": "1"}, "users/w/clients/x": {SHA256.name: make_text(1)}})
    assert 200 < count()[10_000] < 300 and count().total() == count()[10_000] + count()[8192]
    unknown.update({f"users/v{number}": {} for number in range(30)})
    assert count() == {8192: 1000}
    unknown.update({path: {SHA256.name: make_text(5000)} for path in users})
    assert count() == {5000: 1000}


def test_unknown_users_have_salts_like_the_real_ones() -> None:
    """Kafka's tools make texts, librdkafka makes 64 random bytes."""
    unknown, names = UnknownUsers(b"secret"), [f"name{number}" for number in range(1000)]

    def make_forms(mechanism: ScramMechanism = SHA256) -> list[CredentialForm]:
        return [find_form(format_credential(unknown.make_credential(mechanism, name))) for name in names]

    def make_user(*salts: bytes) -> dict[str, str]:
        credentials = (ScramCredential(salt, b"key", b"key", 4096) for salt in salts)
        return {one.name: format_credential(made) for one, made in zip((SHA256, SHA512), credentials, strict=False)}

    assert set(make_forms()) == {(4096, 0)}
    unknown.update({f"users/u{number}": make_user(random.Random(number).randbytes(64)) for number in range(10)})
    assert (set(make_forms()), set(make_forms(SHA512))) == ({(4096, 64)}, {(4096, 0)})
    text = make_salt(random.Random(1).getrandbits)
    unknown.update({f"users/u{number}": make_user(text, text) for number in range(10, 20)})
    unknown.update({f"users/u{number}": make_user(b"\0" * 64, b"\0" * 64) for number in range(10)})
    assert 450 < make_forms().count(CredentialForm(4096, 64)) < 550
    assert make_forms() == make_forms(SHA512), "a real user has the same form with each mechanism"
    unknown.update({f"users/u{number}": make_user(b"\0" * 100_000) for number in range(20)})
    assert set(make_forms()) == {(4096, 256)}


def test_the_credential_of_an_unknown_user_is_made_for_a_real_one_too() -> None:
    """Otherwise the time of the response, before any authentication, shows which users exist."""
    made: list[str] = []

    class Counted(UnknownUsers):
        def make_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
            made.append(user)
            return super().make_credential(mechanism, user)

    for user in ("alice", "nobody"):
        server = ScramExchange(SHA256, {"alice": credential(SHA256, "a")}.get, Counted(b"secret"), lambda bits: 1)
        server.evaluate(f"n,,n={user},r=x".encode())
    assert made == ["alice", "nobody"]


def test_few_unknown_users_change_their_iterations_when_a_user_is_added() -> None:
    unknown, names = UnknownUsers(b"secret"), [f"name{number}" for number in range(1000)]
    for number in range(100):
        unknown.update({f"users/u{number}": {SHA256.name: make_text(4096 if number % 2 else 8192)}})
    before = [unknown.make_credential(SHA256, name) for name in names]
    unknown.update({"users/new": {SHA256.name: make_text(8192)}})
    after = [unknown.make_credential(SHA256, name) for name in names]
    assert sum(one != other for one, other in zip(before, after, strict=True)) < 20
    assert [one.salt for one in before] == [one.salt for one in after]


def test_a_proof_for_an_unknown_user_that_is_right_is_refused() -> None:
    """Even a client with the key of an unknown user is not authenticated."""
    unknown = UnknownUsers(b"process")
    made = unknown.make_credential(SHA256, "nobody")
    server = ScramExchange(SHA256, lambda user: None, unknown, lambda bits: 1)
    first = server.evaluate(b"n,,n=nobody,r=x").decode()
    without_proof = "c=biws,r=x1"
    signature = SHA256.hmac(made.stored_key, f"n=nobody,r=x,{first},{without_proof}".encode())
    client_key = b"\0" * 32
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    with pytest.raises(SaslError):
        server.evaluate(f"{without_proof},p={proof}".encode())


def test_a_second_token_after_the_end_is_refused() -> None:
    exchange = Exchange()
    exchange.run()
    for token in (b"n,,n=alice,r=x", b"c=biws,r=x,p=AAAA", b""):
        with pytest.raises(SaslError):
            exchange.server.evaluate(token)


def test_a_failed_exchange_cannot_be_repeated() -> None:
    exchange = Exchange(password="wrong")
    with pytest.raises(SaslError):
        exchange.run()
    with pytest.raises(SaslError):
        exchange.server.evaluate(b"n,,n=alice,r=x")


def with_tokenauth(token: bytes) -> bytes:
    return token + b",tokenauth=true" if token.startswith(b"n,") else token


def test_a_user_is_not_a_delegation_token() -> None:
    with pytest.raises(SaslError, match="unknown user"):
        Exchange(change=with_tokenauth).run()


def test_no_token_of_the_same_name_reveals_whether_a_user_exists() -> None:
    def find_salt(first: bytes) -> bytes:
        return Exchange().server.evaluate(first).split(b",")[1]

    for user in (b"alice", b"nobody"):
        first = b"n,,n=" + user + b",r=x"
        assert find_salt(first) == find_salt(first)
        assert find_salt(first) != find_salt(with_tokenauth(first))


def test_other_extensions_are_ignored() -> None:
    server = Exchange().server
    assert server.evaluate(b"n,,n=alice,r=x,tokenauth=false,other=1").startswith(b"r=x")


def test_a_credential_with_few_iterations_is_refused() -> None:
    weak = credential(SHA256, "secret")._replace(iterations=4095)
    with pytest.raises(SaslError, match="fewer than 4096 iterations"):
        Exchange(found=weak).run()


def test_the_client_refuses_a_broker_without_the_credential() -> None:
    exchange = Exchange(found=credential(SHA256, "secret")._replace(server_key=b"\1" * 32))
    with pytest.raises(SaslError, match="does not have the credential"):
        exchange.run()


@pytest.mark.parametrize(
    "first", [b"", b"r=nonce,s=AA==,i=4096", b"r=other,s=AA==,i=4096", b"r=nonce1,s=A,i=4096", b"r=nonce1,s=AA==,i=0",
              b"r=nonce1,s=AA==,i=2000000", b"r=nonce1,s=AA==,i=4095", b"e=other-error"],
)  # fmt: skip
def test_the_client_refuses_a_malformed_server_first(first: bytes) -> None:
    with pytest.raises(SaslError):
        run(Exchange().client.answer(first))


def test_the_text_of_a_credential_is_that_of_apache_kafka() -> None:
    made = ScramCredential(b"salt", b"\1\2", b"\3", 4096)
    text = "salt=c2FsdA==,stored_key=AQI=,server_key=Aw==,iterations=4096"
    assert format_credential(made) == text
    assert parse_credential(text) == made
    assert parse_credential("iterations=4096,salt=c2FsdA==,server_key=Aw==,stored_key=AQI=") == made
    assert "AQI" not in repr(made)
    assert str(made) == "ScramCredential(iterations=4096)"


@pytest.mark.parametrize(
    "text", ["", "x", "salt=AA==", "salt=AA==,stored_key=!,server_key=AA==,iterations=1", "salt=AA==,stored_key=AA==,"
             "server_key=AA==,iterations=many", "salt=AA==,stored_key=AA==,server_key=AA==,iterations=1,more=2"],
)  # fmt: skip
def test_malformed_credentials(text: str) -> None:
    with pytest.raises(ValueError, match=r"^malformed SCRAM credential$"):
        parse_credential(text)


def test_random_salts() -> None:
    bits = random.Random(1).getrandbits
    salts = {make_salt(bits) for _ in range(100)}
    assert len(salts) == 100
    assert all(salt.isalnum() and 20 <= len(salt) <= 26 for salt in salts)


def test_names_in_paths_are_those_of_kafkas_sanitizer() -> None:
    for name, text in {"alice": "alice", "a b*c~d/e": "a%20b%2Ac%7Ed%2Fe", "ä+<>.-_": "%C3%A4%2B%3C%3E.-_"}.items():
        assert sanitize_name(name) == text
        assert desanitize_name(text) == name


def test_users_of_plain() -> None:
    users = find_users({"user_alice": "a", "username": "x", "user_": "y", "user_b c": "€"})
    assert users == {"alice": b"a", "": b"y", "b c": "€".encode()}
    exchange = PlainExchange(users)
    assert exchange.evaluate("\0b c\0€".encode()) == b""
    assert exchange.authenticated == ("b c", None, False)


class Users:
    def __init__(self) -> None:
        self.store = MemoryMetadataStore()
        run(prepare_store(self.store, "cluster"))
        self.entities = EntityConfigs(self.store, lambda description, work: None)
        self.users = ScramUsers(self.entities, self.store, lambda: 0)

    def alter(self, *changes: Any) -> dict[str, int]:
        results: dict[str, KafkaError | None] = run(self.users.alter(changes))
        return {user: 0 if error is None else int(error.code) for user, error in results.items()}

    def describe(self, *users: str) -> list[DescribedUser]:
        described = run_first_steps(self.users.describe(users), 100)
        assert described is not None
        return described


def upsert(user: str, mechanism: int = 1) -> Upsertion:
    return Upsertion(user, mechanism, 4096, b"salt", b"salted")


def test_users_are_set_described_and_removed() -> None:
    one = Users()
    assert one.alter(upsert("b"), upsert("a/b")) == {"b": 0, "a/b": 0}
    assert one.alter(upsert("b", 2)) == {"b": 0}
    assert [(user.user, user.iterations) for user in one.describe()] == [
        ("a/b", {1: 4096}),
        ("b", {1: 4096, 2: 4096}),
    ]
    assert one.alter(Deletion("b", 1), Deletion("c", 1)) == {"b": 0, "c": 91}
    assert [(user.user, user.iterations) for user in one.describe("b")] == [("b", {2: 4096})]
    again = EntityConfigs(one.store, lambda description, work: None)
    run(again.start())
    assert again.configs == one.entities.configs
    assert set(again.configs) == {"users/b", "users/a%2Fb"}


def test_names_that_no_path_may_contain() -> None:
    one = Users()
    odd = [".", "..", "...", "%2E", "/", "users/b", "<default>", "%", "a" * 300, "\0"]
    assert one.alter(*map(upsert, odd)) == dict.fromkeys(odd, 0)
    assert sorted(user.user for user in one.describe()) == sorted(odd)
    assert one.alter(*(Deletion(user, 1) for user in odd)) == dict.fromkeys(odd, 0)
    assert one.describe() == []


def test_a_change_whose_response_was_lost_is_reported_as_made() -> None:
    one = Users()
    lose_next_response(one.store)
    assert one.alter(upsert("b")) == {"b": 0}
    lose_next_response(one.store)
    assert one.alter(Deletion("b", 1)) == {"b": 0}
    assert one.entities.configs == {}
    assert one.alter(Deletion("b", 1)) == {"b": 91}


def test_other_properties_of_a_user_remain() -> None:
    one = Users()
    one.alter(upsert("b"))
    path = "users/b"
    one.entities.put(path, {**one.entities.configs[path], "consumer_byte_rate": "1"})
    assert describe_users({"users/x": {"consumer_byte_rate": "1"}, "clients/y": {"SCRAM-SHA-256": "x"}}, []) == []


def test_a_description_of_many_users_takes_several_steps() -> None:
    """The reactor serves other clients between them."""
    names = [f"user-{number:03d}" for number in range(300)]
    configs = {"SCRAM-SHA-256": format_credential(credential(SHA256, "x"))}
    entities = {f"users/{name}": configs for name in names}
    for requested in (names, []):
        assert run_first_steps(describe_in_steps(entities, requested), 2) is None
        assert [one.user for one in describe_users(entities, requested)] == names


class CountedName(str):
    """A name whose comparisons are counted."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_description_of_many_users_compares_no_name_with_all_others() -> None:
    """Otherwise a request with 20,000 names would hold the reactor for 10 s."""
    names = [CountedName(f"user-{number}") for number in range(300)]
    assert len(describe_users({}, [*names, names[7]])) == 300
    assert CountedName.comparisons < 3 * len(names)


def test_a_malformed_credential_is_an_error_of_its_user() -> None:
    [found] = describe_users({"users/x": {"SCRAM-SHA-256": "secret"}}, [])
    assert found.error is not None
    assert "secret" not in str(found.error)
