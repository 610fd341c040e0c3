"""Python functions that a pipeline's file names."""

from collections.abc import Callable
from importlib import import_module


def import_function(name: str) -> Callable[..., object]:
    """Return the object that `module.name` names. Raises ImportError, and AttributeError if the module has no such
    name.
    """
    module, _, attribute = name.removeprefix("python:").rpartition(".")
    found: Callable[..., object] = getattr(import_module(module), attribute)
    return found
