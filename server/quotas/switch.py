"""Switch of the quotas, which are loaded when the first is set: a broker without quotas pays nothing for them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from odradek.replication.metadata.entity_configs import IPS
from odradek.replication.metadata.image import Configs
from odradek.server.quotas.keys import CLIENT_KEYS

if TYPE_CHECKING:
    from odradek.server.quotas.client_quotas import ClientQuotas
    from odradek.server.quotas.ip_rates import IpRates
    from odradek.server.work.clock import Resolver
    from odradek.server.work.slices import Slices


class QuotaConfig(Protocol):
    """The properties of quotas."""

    @property
    def quota_window_num(self) -> int: ...
    @property
    def quota_window_size_seconds(self) -> int: ...
    @property
    def controller_quota_window_num(self) -> int: ...
    @property
    def controller_quota_window_size_seconds(self) -> int: ...


class Quotas(Protocol):
    """The quotas that apply to requests now."""

    @property
    def active(self) -> "ClientQuotas | None":
        """The quotas of users and client ids; None while there are none."""


class NoQuotas:
    """No quotas (`Quotas`)."""

    active: "ClientQuotas | None" = None


NO_QUOTAS: Final = NoQuotas()


class QuotaSwitch:
    """The quotas of a broker, once there are any.

    active: the quotas of users and client ids; None while there are none
    on_ip_rates: called with the rates of IP addresses when the first is set
    """

    def __init__(
        self,
        config: QuotaConfig,
        resolver: "Resolver",
        monotonic_ms: Callable[[], int],
        monotonic: Callable[[], float],
        slices: "Slices",
        on_ip_rates: "Callable[[IpRates], None]",
    ) -> None:
        self.active: ClientQuotas | None = None
        self._config = config
        self._resolver = resolver
        self._monotonic_ms = monotonic_ms
        self._monotonic = monotonic
        self._slices = slices
        self._on_ip_rates = on_ip_rates
        self._clients: ClientQuotas | None = None
        self._ips: IpRates | None = None

    def update(self, changed: Mapping[str, Configs]) -> None:
        """Apply changed configurations of entities (`EntityListener`)."""
        of_ips = {path: configs for path, configs in changed.items() if path.startswith(f"{IPS}/")}
        if of_ips:
            self._update_ips(of_ips)
        if len(of_ips) < len(changed):
            self._update_clients(changed)

    def remove_idle(self) -> None:
        """Remove the state of clients and addresses that have not been active for an hour."""
        for quotas in (self._clients, self._ips):
            if quotas is not None:
                quotas.remove_idle()

    def _update_clients(self, changed: Mapping[str, Configs]) -> None:
        quotas = self._clients
        if quotas is None:
            if not any(key in configs for configs in changed.values() for key in CLIENT_KEYS):
                return
            quotas = self._clients = self._make_clients()
        quotas.update(changed)
        self.active = quotas if quotas.is_active else None
        self._slices.meter = quotas.attribute if quotas.measures_time else None

    def _make_clients(self) -> "ClientQuotas":
        from odradek.server.quotas.client_quotas import ClientQuotas
        from odradek.server.quotas.rates import Window

        config = self._config
        return ClientQuotas(
            Window(config.quota_window_num, config.quota_window_size_seconds * 1000),
            Window(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000),
            self._monotonic_ms,
            self._monotonic,
        )

    def _update_ips(self, changed: Mapping[str, Configs]) -> None:
        if self._ips is None:
            from odradek.server.quotas.ip_rates import IpRates
            from odradek.server.quotas.rates import Window

            config = self._config
            window = Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
            self._ips = IpRates(window, self._monotonic_ms, self._resolver)
            self._on_ip_rates(self._ips)
        self._ips.update(changed)
