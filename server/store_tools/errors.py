"""Errors of the commands on a metadata store."""


class UsageError(Exception):
    """An invalid command line or configuration; each argument is one line."""


class StoreToolError(Exception):
    """The store cannot be used, or refuses a change. The message is one line."""


class OpenStoreError(StoreToolError):
    """A running broker has the store open."""
