"""Logins by SCRAM with passwords or delegation tokens, for Kafka's tools, and the tokens that they print."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from compat_tests.apache_kafka import tools
from compat_tests.sasl_users import SCRAM_MODULE


class Login(NamedTuple):
    """A user with a password, or a token's id with its HMAC."""

    servers: str
    directory: Path
    name: str
    secret: str
    mechanism: str = "SCRAM-SHA-512"
    is_token: bool = False

    def write_properties(self) -> Path:
        """Write the properties of a client with this login; return their file, which other logins overwrite."""
        token = " tokenauth=true" if self.is_token else ""
        jaas = f'{SCRAM_MODULE} required username="{self.name}" password="{self.secret}"{token};'
        file = self.directory / "client.properties"
        file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={self.mechanism}\nsasl.jaas.config={jaas}\n")
        return file

    def run(self, tool: str, *arguments: str, **options: Any) -> tools.ToolResult:
        """Run one of Kafka's tools."""
        file = str(self.write_properties())
        return tools.run(tool, "--bootstrap-server", self.servers, "--command-config", file, *arguments, **options)

    def as_token(self, token: "Token", mechanism: str = "SCRAM-SHA-256") -> "Login":
        return self._replace(name=token.token_id, secret=token.hmac, mechanism=mechanism, is_token=True)

    def is_accepted(self) -> bool:
        """Return whether the broker accepts the login: it follows changes of tokens within some ms."""
        return self.run(tools.TOPICS, "--list", check=False).returncode == 0

    def is_refused(self) -> bool:
        return not self.is_accepted()

    def refusal(self, tool: str, *arguments: str) -> str:
        """Return the output of a tool that fails."""
        result = self.run(tool, *arguments, check=False)
        output = result.stdout + result.stderr
        assert result.returncode != 0 or "Error while executing" in output, output
        return output


class Token(NamedTuple):
    """A row of the tool's output; the times are minutes, in the local time zone."""

    token_id: str
    hmac: str
    owner: str
    requester: str
    renewers: str
    issued: str
    expires: str
    latest: str


_TIME = r"(\d{4}-\d\d-\d\dT\d\d:\d\d)"
_ROW = re.compile(
    rf"^([\w-]{{22}})\s+(\S{{88}})\s+(\S+)\s+(\S+)\s+(\[.*?\])\s+{_TIME}\s+{_TIME}\s+{_TIME}\s*$", re.MULTILINE
)


def read_tokens(output: str) -> list[Token]:
    """Parse the table that the tool prints."""
    return [Token(*row) for row in _ROW.findall(output)]
