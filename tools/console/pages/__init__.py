"""The pages of the console, one blueprint of Flask for each part.

- `login`: login and logout
- `overview`: the cluster and its brokers
- `topics`: topics, partitions and configurations
- `records`: records of a topic, downloads, the live tail
- `groups`: groups with members and lag
- `readers`: clients that fetch records
- `transactions`: transactions, and those that hang
- `access`: ACLs, users and quotas
- `pipelines`: pipelines on this machine
- `topic_changes`: creation, configuration and deletion of topics, production of a record
- `group_changes`: reset of a group
"""

from typing import Final

from flask import Blueprint

from odradek.tools.console.pages.access import access
from odradek.tools.console.pages.group_changes import group_changes
from odradek.tools.console.pages.groups import groups
from odradek.tools.console.pages.login import login
from odradek.tools.console.pages.overview import overview
from odradek.tools.console.pages.pipelines import pipelines
from odradek.tools.console.pages.readers import readers
from odradek.tools.console.pages.records import records
from odradek.tools.console.pages.topic_changes import topic_changes
from odradek.tools.console.pages.topics import topics
from odradek.tools.console.pages.transactions import transactions

PAGES: Final[tuple[Blueprint, ...]] = (
    login,
    overview,
    topics,
    records,
    groups,
    topic_changes,
    group_changes,
    readers,
    transactions,
    access,
    pipelines,
)
