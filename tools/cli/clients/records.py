"""The commands `odradek record`."""

from odradek.tools.cli.clients.consume_records import consume
from odradek.tools.cli.clients.produce_records import produce
from odradek.tools.cli.groups import Commands

commands = Commands("record", "Records: consume and produce.")
commands.command("consume")(consume)
commands.command("produce", is_change=True)(produce)
