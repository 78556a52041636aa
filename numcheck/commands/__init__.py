"""One command a file: `main(options) -> exit code`."""
