"""GSSAPI on the side that connects to a broker: it presents a ticket, obtained with the keys of a keytab.

Sources: RFC 4752 (without a security layer), Java's GssKrb5Client. Unlike Kafka's clients this broker requires that the
other one proves its identity too (mutual authentication).
"""

import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, NamedTuple

from twisted.internet.defer import DeferredLock

from odradek.server.security.sasl.kerberos.keytab import KerberosError
from odradek.server.security.sasl.kerberos.library import GSSError, gssapi
from odradek.server.security.sasl.mechanism import SaslError, find_backoff_ms

logger = logging.getLogger(__name__)

_NO_LAYER: Final = 1
_CHOICE: Final = bytes([_NO_LAYER, 0, 0, 0])
"""No security layer, and messages of size 0 with one."""

_ALL_HOSTS: Final = ""

_numbers: Final = count(1)
"""Numbers of ticket caches. A cache in memory remains as long as the process, and is for one principal only."""


class InitiatorSettings(NamedTuple):
    """The broker's principal, and the service name of all brokers.

    keytab: its name for the library
    jaas_name: the property with principal and keytab, for messages
    """

    principal: str
    keytab: str
    service: str
    jaas_name: str
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000


class GssapiClientExchange:
    """One authentication.

    begin: returns the security context and its first token; raises SaslError
    """

    def __init__(self, begin: Callable[[], Awaitable[tuple[Any, bytes]]]) -> None:
        self._begin = begin
        self._context: Any = None
        self._has_chosen = False

    async def begin(self) -> bytes:
        """Return the first token of the security context."""
        self._context, token = await self._begin()
        return token

    async def answer(self, token: bytes) -> bytes | None:
        """Return the next token, then the chosen security layer, then None. Raises SaslError."""
        if self._has_chosen:
            return None
        try:
            if not self._context.complete:
                return self._context.step(token) or b""
            self._has_chosen = True
            return self._choose_layer(self._context.unwrap(token).message)
        except GSSError as error:
            raise SaslError(f"Kerberos: {error}") from None

    def _choose_layer(self, offer: bytes) -> bytes:
        if len(offer) < len(_CHOICE) or not offer[0] & _NO_LAYER:
            raise SaslError("the other broker requires a security layer, which Kafka does not use")
        choice: bytes = self._context.wrap(_CHOICE, encrypt=False).message
        return choice


class KerberosInitiator:
    """Logs in at the KDC, and begins exchanges. The library renews its tickets, which it keeps in memory.

    All steps that may wait for the KDC run in a thread, one at a time: it may take 25 s if it does not respond.
    After a failed login the next one waits (backoff), and exchanges fail meanwhile. Exchanges with one host that wait
    for each other fail together, so that those with other hosts wait for one of them only.

    monotonic: the monotonic clock, in seconds
    run_in_thread: returns when a function has run in a thread
    """

    def __init__(
        self,
        settings: InitiatorSettings,
        monotonic: Callable[[], float],
        run_in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._run_in_thread = run_in_thread
        self._lock = DeferredLock()
        # Tickets of this object only: other processes and the configuration's default have other ones.
        self._ticket_cache = f"MEMORY:odradek-{next(_numbers)}"
        self._failures = 0
        self._login_from_s = 0.0
        # The last failure of the login (_ALL_HOSTS), and those of tickets for other brokers, by host.
        self._reported: dict[str, str] = {}
        # The time of the last failure of a ticket, by host.
        self._failed_s: dict[str, float] = {}

    def make_exchange(self, host: str) -> GssapiClientExchange:
        """Begin an exchange with the broker on a host."""
        return GssapiClientExchange(lambda: self._begin(host))

    async def _begin(self, host: str) -> tuple[Any, bytes]:
        """Return a security context and its first token. Raises SaslError."""
        began_s = self._monotonic()
        await self._lock.acquire()
        try:
            if self._failed_s.get(host, began_s) > began_s:
                raise SaslError(f"Kerberos: {self._reported[host]}")
            credentials = await self._log_in()
            try:
                context, token = await self._call(lambda: begin_context(credentials, self._settings.service, host))
            except KerberosError as error:
                self._report(host, str(error), f"no ticket for {self._settings.service}/{host}")
                self._failed_s[host] = self._monotonic()
                raise SaslError(f"Kerberos: {error}") from None
            self._reported.pop(host, None)
            self._failed_s.pop(host, None)
            return context, token
        finally:
            self._lock.release()

    async def _log_in(self) -> Any:
        """Return the credential, which has tickets. Raises SaslError."""
        if self._failures and self._monotonic() < self._login_from_s:
            raise SaslError(f"Kerberos: {self._reported[_ALL_HOSTS]}")
        settings = self._settings
        try:
            credentials = await self._call(lambda: log_in(settings.principal, settings.keytab, self._ticket_cache))
        except KerberosError as error:
            hint = f"check principal and keyTab of {settings.jaas_name}, and the KDC in krb5.conf"
            self._report(_ALL_HOSTS, str(error), f"cannot log in as {settings.principal}; {hint}")
            delay_ms = find_backoff_ms(self._failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
            self._failures += 1
            self._login_from_s = self._monotonic() + delay_ms / 1000
            raise SaslError(f"Kerberos: {error}") from None
        if self._failures:
            logger.info("logged in principal=%s", settings.principal)
            self._failures = 0
            del self._reported[_ALL_HOSTS]
        return credentials

    async def _call(self, work: Callable[[], Any]) -> Any:
        """Return the result of a function that is called in a thread. Raises SaslError, or an error of the function."""
        results: list[Any] = []
        try:
            await self._run_in_thread(lambda: results.append(work()))
        except RuntimeError as error:
            # No thread can be started. As for any failed login, the request is sent again.
            raise SaslError(f"Kerberos: {error}") from None
        return results[0]

    def _report(self, host: str, failure: str, consequence: str) -> None:
        """Log a failure, once until it changes or ends."""
        level = logging.DEBUG if self._reported.get(host) == failure else logging.ERROR
        self._reported[host] = failure
        logger.log(level, "GSSAPI between brokers: %s; retrying error=%s", consequence, failure)


def log_in(principal: str, keytab: str, ticket_cache: str) -> Any:
    """Return the credential of a principal; get a ticket from the KDC if there is none, or if it is old.

    Raises KerberosError, with the text of the library's error, which is known in the same thread only.
    """
    try:
        return gssapi.Credentials(
            name=gssapi.Name(principal, gssapi.NameType.kerberos_principal),
            usage="initiate",
            mechs=[gssapi.MechType.kerberos],
            store={"client_keytab": keytab, "ccache": ticket_cache},
        )
    except GSSError as error:
        raise KerberosError(str(error)) from None


def begin_context(credentials: Any, service: str, host: str) -> tuple[Any, bytes]:
    """Return a context and its first token; get a ticket for the other broker if there is none.

    Raises KerberosError.
    """
    try:
        context = gssapi.SecurityContext(
            name=gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service),
            creds=credentials,
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
        )
        return context, context.step() or b""
    except GSSError as error:
        raise KerberosError(str(error)) from None
