"""A study as a web page: one file with its charts and tables, which asks nothing of any network."""

from autotune.report.page.document import to_html
from autotune.report.page.index import file_name, to_index

__all__ = ["file_name", "to_html", "to_index"]
