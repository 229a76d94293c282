"""Commands on tuned configs: list, show, look up, report, export, import."""
