"""Results as values: what a study found, computed once, for the command line, the report and programs to render."""
