"""Nothing to set up: the plugin chooses device and interpreter, see `addopts` in pyproject.toml."""
