"""Commands about what clients do.

- `records`: `odradek record`
- `record_options`: options of `odradek record`
- `consume_records`: `odradek record consume`
- `produce_records`: `odradek record produce`
- `consumer_groups`: `odradek group`
- `offset_reset`: `odradek group reset`
- `transactions`: `odradek transaction`
- `quotas`: `odradek quota`
"""
