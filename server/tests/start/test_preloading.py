"""Imports within functions are preloaded; an import with a transient failure fails one request, not the next."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import odradek
from odradek.server.tests.wire import until
from odradek.testing import OdradekBroker

ROOT = Path(odradek.__file__).resolve().parent.parent
AT_START = {
    "server/cli.py",
    "server/broker.py",
    "server/event_log/setup.py",
    "server/environment.py",
    "server/listeners.py",
    "server/store_location.py",
    "server/membership/clients.py",
    "server/membership/cluster.py",
    "server/membership/embedded.py",
    "server/cluster_tools/start.py",
    "server/security/sasl/inter_broker.py",
    "server/security/sasl/mechanisms.py",
    "server/security/sasl/oauthbearer/issuer_context.py",
    "server/security/sasl/oauthbearer/retrievers.py",
    "server/store_tools/acls.py",
    "server/store_tools/store.py",
    "server/stores/zookeeper/settings.py",
}
"""Modules whose functions import at the start only, and modules of tools."""

NOT_NEEDED = {
    "annotationlib",
    "crc32c",
    "cryptography.exceptions",
    "cryptography.hazmat.primitives.ciphers",
    "cryptography.hazmat.primitives.ciphers.aead",
    "difflib",
    "re",
}
"""Modules imported only for an error in a configuration file, for a password that is configured while the broker runs,
or in another version of Python."""


def imports_within_functions():
    found = set()
    for package in ("protocol", "log", "replication", "coordinator", "server"):
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT).as_posix()
            if "tests" in path.parts or relative in AT_START or path.parent.name == "config":
                continue
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for node in ast.walk(function):
                        if isinstance(node, ast.ImportFrom) and node.module:
                            found.add(node.module)
                        elif isinstance(node, ast.Import):
                            found.update(name.name for name in node.names)
    return found - NOT_NEEDED


def run(code, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_everything_that_functions_import_is_preloaded():
    code = """
        import sys
        import odradek.server.broker
        from odradek.server.preloading import preload
        for _ in preload():
            pass
        print(*sorted(set(sys.argv[1:]) - set(sys.modules)))
    """
    needed = imports_within_functions()
    assert "odradek.server.coordinators.groups" in needed
    assert run(code, *needed).split() == []


def test_the_codecs_of_requests_between_brokers_are_compiled_in_a_cluster():
    code = """
        from odradek.protocol.codec import decoder, small_encoder, step_decoder, step_encoder
        from odradek.protocol.messages.fetch import FetchRequest, FetchResponse
        from odradek.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
        from odradek.server.apis import APIS
        from odradek.server.preloading import preload

        def count_compiled():
            codecs = (decoder, step_decoder, small_encoder, step_encoder)
            before = sum(codec.cache_info().misses for codec in codecs)
            for codec in codecs:
                for message in (UpdateMetadataRequest, UpdateMetadataResponse):
                    codec(message, 8)
                for message in (FetchRequest, FetchResponse):
                    codec(message, 17)
            return sum(codec.cache_info().misses for codec in codecs) - before

        list(preload(APIS))
        print(count_compiled())
    """
    assert run(code) == "0\n"


def test_an_import_that_lacks_a_descriptor_is_retried():
    code = """
        import os, resource
        from types import SimpleNamespace
        from odradek.protocol.headers import api_code
        from odradek.protocol.types import DecodeError
        from odradek.server.apis import APIS
        from odradek.server.dispatch import Dispatch
        from odradek.server.preloading import preload
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        dispatch = Dispatch(SimpleNamespace())
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        list(preload())
        refused = []
        for api in APIS.values():
            try:
                dispatch.find(api_code(api.key, api.last_version))
            except DecodeError as error:
                refused.append(api.key)
                assert "cannot be loaded now: [Errno 24]" in str(error), error
        assert len(refused) == len(APIS), refused
        for descriptor in held:
            os.close(descriptor)
        for api in APIS.values():
            assert dispatch.find(api_code(api.key, api.last_version)).name == api.name
        list(preload())
    """
    run(code)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the mapped files of a process")
def test_a_started_broker_preloads_modules_before_any_request():
    with OdradekBroker() as broker:
        until(lambda: "cramjam" in Path(f"/proc/{broker.pid}/maps").read_text())
