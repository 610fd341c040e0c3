"""Names of Kafka's APIs, for those that Odradek has no message of as well."""

import pkgutil
from functools import cache
from typing import Final

_OTHERS: Final = {
    52: "Vote",
    53: "BeginQuorumEpoch",
    54: "EndQuorumEpoch",
    58: "Envelope",
    59: "FetchSnapshot",
    62: "BrokerRegistration",
    63: "BrokerHeartbeat",
    64: "UnregisterBroker",
    68: "ConsumerGroupHeartbeat",
    70: "ControllerRegistration",
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
    73: "AssignReplicasToDirs",
    76: "ShareGroupHeartbeat",
    78: "ShareFetch",
    79: "ShareAcknowledge",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
    82: "UpdateRaftVoter",
    83: "InitializeShareGroupState",
    84: "ReadShareGroupState",
    85: "WriteShareGroupState",
    86: "DeleteShareGroupState",
    87: "ReadShareGroupStateSummary",
    88: "StreamsGroupHeartbeat",
    91: "AlterShareGroupOffsets",
    92: "DeleteShareGroupOffsets",
}


def name_api(key: int) -> str:
    """Return the name of an API, or its number if it has none."""
    return _find_names().get(key) or _OTHERS.get(key, f"api {key}")


@cache
def _find_names() -> dict[int, str]:
    from importlib import import_module

    from odradek.protocol import messages
    from odradek.protocol.schema import Message

    names = {}
    for info in pkgutil.iter_modules(messages.__path__):
        module = import_module(f"{messages.__name__}.{info.name}")
        for name, value in vars(module).items():
            if (
                isinstance(value, type)
                and issubclass(value, Message)
                and name.endswith("Request")
                and value is not Message
            ):
                names[value.api_key] = name.removesuffix("Request")
    return names
