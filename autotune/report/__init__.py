"""Reports: what a finished study found, from the database alone, as Markdown and JSON."""

from autotune.report.builder import build
from autotune.report.document import overview, to_dict, to_json, to_markdown
from autotune.report.model import Report

__all__ = ["Report", "build", "overview", "to_dict", "to_json", "to_markdown"]
