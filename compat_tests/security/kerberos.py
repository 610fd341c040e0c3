"""A realm of Kerberos: MIT's KDC in a temporary directory, on a free port of the loopback interface.

Its programs are those of Debian's krb5-kdc. All of them, and the libraries of clients, read KRB5_CONFIG.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from compat_tests import limits, processes

REALM = "ODRADEK.TEST"
PASSWORD = "password of a user"
_KDC = "krb5kdc"
_ADMIN = "kadmin.local"
_DATABASE = "kdb5_util"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"

MISSING = [name for name in (_KDC, _ADMIN, _DATABASE) if shutil.which(name, path=_PATH) is None]
"""Programs that are not installed."""

HINT = "the tests of GSSAPI need a KDC: apt-get install krb5-kdc krb5-admin-server krb5-user libkrb5-dev"


class Kdc:
    """A KDC that runs within the context."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.config = directory / "krb5.conf"
        self.port = processes.lasting_port()
        self.environment = {
            **os.environ,
            "PATH": _PATH,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5RCACHEDIR": str(directory),
        }

    def __enter__(self) -> Self:
        directory = self._directory
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        (directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n"
            f"  key_stash_file = {directory}/stash\n  acl_file = {directory}/acl\n }}\n"
        )
        self._run(_DATABASE, "create", "-s", "-r", REALM, "-P", "master password")
        program = shutil.which(_KDC, path=_PATH)
        assert program is not None
        self._process = processes.start(
            [program, "-n", "-r", REALM],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def add_user(self, name: str) -> None:
        """Add a principal with PASSWORD."""
        self._run(_ADMIN, "-r", REALM, "addprinc", "-pw", PASSWORD, f"{name}@{REALM}")

    def add_keytab(self, *principals: str) -> Path:
        """Add principals with random keys; return a keytab with them."""
        path = self._directory / f"{principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self._run(_ADMIN, "-r", REALM, "addprinc", "-randkey", f"{principal}@{REALM}")
            self._run(_ADMIN, "-r", REALM, "ktadd", "-k", str(path), f"{principal}@{REALM}")
        return path

    def change_key(self, principal: str) -> None:
        """Give a principal another random key, so that its keytabs are not valid any more."""
        self._run(_ADMIN, "-r", REALM, "cpw", "-randkey", f"{principal}@{REALM}")

    def append_key(self, keytab: Path, principal: str) -> None:
        """Append a new key of a principal to a keytab."""
        self._run(_ADMIN, "-r", REALM, "ktadd", "-k", str(keytab), f"{principal}@{REALM}")

    def copy_keytab(self, keytab: Path, name: str) -> Path:
        """Return a copy of a keytab."""
        return Path(shutil.copy(keytab, self._directory / f"{name}.keytab"))

    def environment_of(self, keytab: Path) -> dict[str, str]:
        """Return variables of a process whose default client keytab is `keytab`, with an own cache of tickets."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_CLIENT_KTNAME": str(keytab),
            "KRB5CCNAME": f"FILE:{keytab}.cache",
        }

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [program, *arguments], env=self.environment, capture_output=True, text=True, timeout=limits.TOOL_S
        )
        assert done.returncode == 0, f"{program} {arguments}:\n{done.stdout}{done.stderr}"

    def _wait(self) -> None:
        give_up_at = time.monotonic() + limits.TOOL_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            log = self._directory / "kdc.log"
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise AssertionError(f"the KDC does not run:\n{log.read_text() if log.exists() else ''}")
            time.sleep(0.02)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, which Kerberos reads, for the duration of the context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
