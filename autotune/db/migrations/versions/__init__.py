"""One file per revision of the schema; written by hand, never changed once released.

A revision only adds nullable columns, indexes and tables. Readers of older and newer versions read what they know while
a fleet is upgraded, and running writers continue. The one exception is 0005, which renames the tables: versions that
know only the old names have to be upgraded.
"""
