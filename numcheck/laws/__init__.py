"""The laws, one file each. `LAWS` is a plain tuple, in the order in which a report shows them."""
