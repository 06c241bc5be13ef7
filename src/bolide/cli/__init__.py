"""The `bolide` command: what a user runs from a shell. Nothing in the package imports it."""
