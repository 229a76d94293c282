"""The subcommands of ``tune``."""
