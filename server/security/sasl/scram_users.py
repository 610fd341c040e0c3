"""SCRAM users in the metadata store: description and changes.

Sources: KIP-554; the checks and messages of Apache Kafka 4.3's ScramControlManager and ScramImage. A user is the
entity `users/<name>` of `entity_configs`, whose configuration has one credential for each mechanism.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.context import as_kafka_error
from odradek.replication.metadata.entity_configs import USERS, EntityConfigs
from odradek.replication.metadata.entity_names import desanitize_name, sanitize_name
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError
from odradek.server.security.sasl.scram_credentials import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    format_credential,
    make_credential,
    parse_credential,
)
from odradek.server.work.slices import ROWS_PER_STEP, run_first_steps

logger = logging.getLogger(__name__)

_BY_NUMBER: Final = {mechanism.number: mechanism for mechanism in SCRAM_MECHANISMS.values()}
_TWICE: Final = "A user credential cannot be altered twice in the same request"


class Deletion(NamedTuple):
    """Removal of a user's credential. `mechanism`: its number in requests."""

    user: str
    mechanism: int


class Upsertion(NamedTuple):
    """A user's new credential."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, {self.mechanism}, {self.iterations})"


Change = Deletion | Upsertion


class DescribedUser(NamedTuple):
    """A user's mechanisms, by number, with their iterations; or an error."""

    user: str
    iterations: Mapping[int, int]
    error: KafkaError | None = None


def user_path(user: str) -> str:
    """Return the path of a user, as in `entity_configs`."""
    return f"{USERS}/{sanitize_name(user)}"


def describe_users(entities: Mapping[str, Configs], users: Sequence[str]) -> list[DescribedUser]:
    """Describe users, or all users with a credential if none is named."""
    return run_first_steps(describe_in_steps(entities, users), sys.maxsize) or []


def describe_in_steps(
    entities: Mapping[str, Configs], users: Sequence[str]
) -> Generator[None, None, list[DescribedUser]]:
    """Describe users like `describe_users`. Changes between the steps may or may not be included."""
    described: list[DescribedUser] = []
    if users:
        for number, (user, times) in enumerate(Counter(users).items(), 1):
            if number % ROWS_PER_STEP == 0:
                yield
            described.append(_describe_named(user, times, entities.get(user_path(user), {})))
        return described
    found: list[tuple[str, Configs]] = []
    for number, (path, configs) in enumerate(list(entities.items()), 1):
        if number % ROWS_PER_STEP == 0:
            yield
        kind, *names = path.split("/")
        if kind == USERS and len(names) == 1 and configs.keys() & SCRAM_MECHANISMS.keys():
            found.append((desanitize_name(names[0]), configs))
    found.sort(key=itemgetter(0))
    for number, (user, configs) in enumerate(found, 1):
        if number % ROWS_PER_STEP == 0:
            yield
        described.append(_describe(user, configs))
    return described


def _describe_named(user: str, times: int, configs: Configs) -> DescribedUser:
    """Describe a user that a request names so many times."""
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif configs.keys() & SCRAM_MECHANISMS.keys():
        return _describe(user, configs)
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return DescribedUser(user, {}, KafkaError(code, message))


def _describe(user: str, configs: Configs) -> DescribedUser:
    iterations: dict[int, int] = {}
    for name, mechanism in SCRAM_MECHANISMS.items():
        if name in configs:
            try:
                iterations[mechanism.number] = parse_credential(configs[name]).iterations
            except ValueError as error:
                return DescribedUser(user, {}, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
    return DescribedUser(user, iterations)


class ScramUsers:
    """Changes the credentials of users in the store."""

    def __init__(self, entity_configs: EntityConfigs, store: MetadataStore, now_ms: Callable[[], int]) -> None:
        self._entity_configs = entity_configs
        self._store = store
        self._now_ms = now_ms

    def describe(self, users: Sequence[str]) -> Generator[None, None, list[DescribedUser]]:
        """Describe users, or all of them, in steps."""
        return describe_in_steps(self._entity_configs.configs, users)

    async def alter(self, changes: Iterable[Change]) -> dict[str, KafkaError | None]:
        """Make the changes that are valid; return an error, or None, for each user."""
        valid, errors = self._check(changes)
        results: dict[str, KafkaError | None] = {}
        for change in valid:
            try:
                await self._store.ready()
                await self._apply(change)
            except (KafkaError, MetadataStoreError) as error:
                results[change.user] = as_kafka_error(error)
            else:
                results[change.user] = None
                logger.info("changed a SCRAM credential user=%r change=%s", change.user, type(change).__name__.lower())
        return {**results, **errors}

    def _check(self, changes: Iterable[Change]) -> tuple[list[Change], dict[str, KafkaError]]:
        valid: dict[str, Change] = {}
        errors: dict[str, KafkaError] = {}
        for change in changes:
            user = change.user
            if user in errors:
                continue
            if valid.pop(user, None) is not None:
                errors[user] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, _TWICE)
                continue
            error = self._find_error(change)
            if error is None:
                valid[user] = change
            else:
                errors[user] = error
        return list(valid.values()), errors

    def _find_error(self, change: Change) -> KafkaError | None:
        if not change.user:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        mechanism = _BY_NUMBER.get(change.mechanism)
        if mechanism is None:
            return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, Deletion):
            if mechanism.name not in self._entity_configs.configs.get(user_path(change.user), {}):
                return _not_found()
        elif change.iterations < MIN_ITERATIONS:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        elif change.iterations > MAX_ITERATIONS:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        return None

    async def _apply(self, change: Change) -> None:
        mechanism = _BY_NUMBER[change.mechanism]
        if isinstance(change, Deletion):
            await self._change(change.user, _make_removal(mechanism.name))
        else:
            credential = make_credential(mechanism, change.salt, change.salted_password, change.iterations)
            await self._change(change.user, lambda configs: put_credential(configs, mechanism, credential))

    async def _change(self, user: str, change: Callable[[Configs], Configs]) -> None:
        path = user_path(user)
        self._entity_configs.put(path, await change_entity(self._store, path, change, self._now_ms))


def put_credential(configs: Configs, mechanism: ScramMechanism, credential: ScramCredential) -> dict[str, str]:
    """Return the configuration of a user with a new credential."""
    return {**configs, mechanism.name: format_credential(credential)}


def _make_removal(mechanism: str) -> Callable[[Configs], Configs]:
    """Return the change that removes a credential.

    It may be called again, after a lost connection: then the credential may be gone because the first attempt was made.
    """
    was_there = False

    def remove(configs: Configs) -> Configs:
        nonlocal was_there
        was_there = was_there or mechanism in configs
        if not was_there:
            raise _not_found()
        return {name: value for name, value in configs.items() if name != mechanism}

    return remove


def _not_found() -> KafkaError:
    return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
