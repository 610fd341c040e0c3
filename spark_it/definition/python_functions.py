"""Import of Python functions that a pipeline file names."""

from collections.abc import Callable
from importlib import import_module


def import_function(name: str) -> Callable[..., object]:
    """Import and return the object `module.name`. Raises ImportError, and AttributeError if the name is missing."""
    module, _, attribute = name.removeprefix("python:").rpartition(".")
    function: Callable[..., object] = getattr(import_module(module), attribute)
    return function
