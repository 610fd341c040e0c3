"""The context of a request to a coordinator."""


class RequestContext:
    """The properties of a request that are not in its message.

    `client_host` is the client's address as Kafka prints it: a slash and the numeric address.
    """

    __slots__ = ("api_version", "client_host", "client_id")

    def __init__(self, *, api_version: int, client_id: str | None = "", client_host: str = "") -> None:
        self.api_version = api_version
        self.client_id = client_id or ""
        self.client_host = client_host
