"""The mechanisms of a listener, whose properties may change: new authentications use the new ones.

Clients that are authenticated stay so; their next authentication (KIP-368) uses the new properties, too.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from odradek.properties import PropertyError
from odradek.server.security.sasl.mechanisms import ListenerMechanism, MechanismParts, make_mechanism
from odradek.server.security.sasl.settings import MechanismSettings, SaslSettings

if TYPE_CHECKING:
    from odradek.server.security.sasl.oauthbearer.jwks import KeySet

logger = logging.getLogger(__name__)


class _Made(NamedTuple):
    """A mechanism, the settings of which it was made, and the functions that end its background work."""

    settings: MechanismSettings
    mechanism: ListenerMechanism
    stops: list[Callable[[], None]]

    def stop(self) -> None:
        for stop in self.stops:
            stop()


class ReloadedMechanisms:
    """The enabled mechanisms of a listener. `stop` ends their background work. Raises PropertyError.

    by_name: the mechanisms; replaced, never changed
    """

    def __init__(self, settings: SaslSettings, parts: MechanismParts) -> None:
        # So that tokens are not refused until a mechanism that is made again has read the keys.
        self._key_sets: dict[str, KeySet] = {}
        self._parts = parts._replace(key_sets=self._key_sets)
        self._made: dict[str, _Made] = {}
        self.by_name: Mapping[str, ListenerMechanism] = {}
        self._make(settings)

    def update(self, settings: SaslSettings) -> None:
        """Use other settings. If they are not valid, the mechanisms remain as they are."""
        try:
            self._make(settings)
        except PropertyError as error:
            logger.error("changed SASL mechanisms are not used, and the last ones remain: %s", error)

    def stop(self) -> None:
        """End the background work of all mechanisms."""
        for made in self._made.values():
            made.stop()

    def _make(self, settings: SaslSettings) -> None:
        made: dict[str, _Made] = {}
        try:
            for one in settings.mechanisms:
                former = self._made.get(one.mechanism)
                if former is not None and former.settings.has_values_of(one):
                    made[one.mechanism] = former
                else:
                    stops: list[Callable[[], None]] = []
                    mechanism = make_mechanism(one, self._parts._replace(on_stop=stops.append))
                    made[one.mechanism] = _Made(one, mechanism, stops)
        except PropertyError:
            _stop_others(made, self._made)
            raise
        _stop_others(self._made, made)
        self._made = made
        if "OAUTHBEARER" not in made:
            self._key_sets.clear()
        self.by_name = {name: one.mechanism for name, one in made.items()}


def _stop_others(made: Mapping[str, _Made], kept: Mapping[str, _Made]) -> None:
    """Stop the mechanisms that are not in `kept`."""
    for name, one in made.items():
        if kept.get(name) is not one:
            one.stop()
