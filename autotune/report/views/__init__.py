"""The page's views: each a pure function from a study to a heading, charts and tables, or to None."""
