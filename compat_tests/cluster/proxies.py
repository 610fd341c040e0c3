"""The process of the proxies that `links` controls: TCP proxies whose connections can be suspended.

Each line of standard input is a command in JSON, which is answered by a line of standard output. The end of the input
ends the process. It is a process of its own so that no client of a test delays the traffic between brokers.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Collection, Mapping

from compat_tests.cluster.connections import ESTABLISHED, list_sockets
from odradek.server.cluster_tools.zookeeper_server import find_port

HOST = "127.0.0.1"
READ_BYTES = 65_536
OTHERS = "others"
"""Source of the connections of processes that have no name: the clients."""

Link = tuple[str, str]
"""Names of the process that opens a connection, and of the server."""


class Proxies:
    """Proxies of servers; `marks` are texts in the command lines of the processes that have a name, by name."""

    def __init__(self, marks: Mapping[str, str]) -> None:
        self._marks = marks
        self._cut: set[Link] = set()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []

    async def add(self, server: str, port: int) -> int:
        """Start the proxy of a server; return the proxy's port."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connect(server, port, reader, writer)

        own = find_port()
        self._servers.append(await asyncio.start_server(serve, HOST, own))
        return own

    def cut(self, links: Collection[Link]) -> None:
        self._cut.update(links)

    def restore(self, links: Collection[Link]) -> None:
        self._cut.difference_update(links)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_until_open(self, link: Link) -> None:
        while link in self._cut:
            await self._changed.wait()

    async def _connect(
        self, server: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        link = (find_owner(writer.get_extra_info("peername")[1], self._marks), server)
        await self._wait_until_open(link)
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self._pump(link, reader, server_writer), self._pump(link, server_reader, writer))

    async def _pump(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                await self._wait_until_open(link)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            await self._wait_until_open(link)
            writer.close()


def find_owner(port: int, marks: Mapping[str, str]) -> str:
    """Return the name of the process that has opened a connection from a port of this machine, or OTHERS."""
    inode = _find_inode(port)
    for process in filter(str.isdigit, os.listdir("/proc")):
        # A process may end at any moment, and those of other users are not accessible.
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/cmdline", errors="replace") as file:
                command = file.read()
            names = [name for name, mark in marks.items() if mark in command]
            if names and inode in list_sockets(int(process)):
                return names[0]
    return OTHERS


def _find_inode(port: int) -> str:
    """Return the inode of the socket that is connected from a port."""
    local = f"0100007F:{port:04X}"
    with open("/proc/net/tcp") as table:
        for line in table:
            if local in line:
                row = line.split()
                if row[1] == local and row[3] == ESTABLISHED:
                    return row[9]
    return ""


async def main() -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    proxies = Proxies(json.loads(await commands.readline()))
    while line := await commands.readline():
        command = json.loads(line)
        answer = None
        if "add" in command:
            answer = await proxies.add(*command["add"])
        proxies.cut([tuple(link) for link in command.get("cut", ())])
        if "restore" in command:
            proxies.restore([tuple(link) for link in command["restore"]])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
