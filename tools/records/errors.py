"""Errors of options and of single records. Each message is one line."""

from importlib import import_module


class InvalidOptionError(Exception):
    """An option, or a file that it names, is invalid."""


def require_package(name: str) -> None:
    """Raise InvalidOptionError unless an optional package is installed."""
    try:
        import_module(name)
    except ModuleNotFoundError:
        raise InvalidOptionError(f"the format needs the package {name}: pip install 'odradek[schemas]'") from None


class UndecodableError(Exception):
    """A key or value is invalid in its format."""


class UnencodableError(Exception):
    """A value cannot be encoded in a format, or a line of the input is invalid."""


class RegistryError(Exception):
    """The registry refused a request, or does not answer. The message is one line with the address.

    status: that of HTTP, 0 without a response
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
