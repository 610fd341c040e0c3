"""Commands about brokers and what they hold.

- `clusters`: `odradek cluster`
- `features`: `odradek cluster features`
- `brokers`: `odradek broker`
- `topics`: `odradek topic`
- `partitions`: `odradek partition`
- `reassignments`: `odradek partition reassign`
- `configs`: `odradek config`
- `config_changes`: a change of configurations, with a preview
- `property_rows`: properties of Odradek as JSON
"""
