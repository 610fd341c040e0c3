"""`make demo`: the first example, from made orders to a table, against the broker of `make start`."""
