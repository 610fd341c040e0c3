"""python-gssapi, an optional dependency. The import of this module raises ImportError without it."""

try:
    import gssapi
    from gssapi.raw.misc import GSSError
except ImportError as error:
    raise ImportError(f"SASL mechanism GSSAPI needs python-gssapi: pip install 'odradek[gssapi]' ({error})") from None

__all__ = ["GSSError", "gssapi"]
