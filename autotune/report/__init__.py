"""Reports: what a finished study found, from the database alone, as Markdown and JSON."""

from typing import TYPE_CHECKING

from autotune.lazily import loading

if TYPE_CHECKING:
    from autotune.report.document import overview, to_dict, to_json, to_markdown
    from autotune.results.builder import build
    from autotune.results.model import Report

__all__ = ["Report", "build", "overview", "to_dict", "to_json", "to_markdown"]

# Most commands need only the figures.
__getattr__ = loading(
    __name__,
    {
        "Report": "autotune.results.model",
        "build": "autotune.results.builder",
        "overview": "autotune.report.document",
        "to_dict": "autotune.report.document",
        "to_json": "autotune.report.document",
        "to_markdown": "autotune.report.document",
    },
)
