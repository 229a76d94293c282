"""A study as a web page: one file with its charts and tables, which asks nothing of any network."""

from autotune.report.page.crossover import sizes_of, thresholds
from autotune.report.page.document import to_html
from autotune.report.page.index import file_name, to_index
from autotune.report.page.study import Study, finished, unfinished

__all__ = ["Study", "file_name", "finished", "sizes_of", "thresholds", "to_html", "to_index", "unfinished"]
