"""The commands `odradek record`."""

from odradek.tools.cli.consume_records import consume
from odradek.tools.cli.groups import Commands
from odradek.tools.cli.produce_records import produce

commands = Commands("record", "Records: consume and produce.")
commands.command("consume")(consume)
commands.command("produce", is_change=True)(produce)
