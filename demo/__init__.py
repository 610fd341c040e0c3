"""`make demo`: the orders example, from generated orders to a table, against the broker of `make start`."""
