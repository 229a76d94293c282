"""One file per revision of the schema; written by hand, never changed once released.

A revision adds nullable columns, indexes and tables, and takes nothing away: readers of older and newer versions read
what they know, while a fleet is being upgraded, and writers that are under way go on. The one exception is 0005: it
renames the tables, and whoever only knows their old names has to be upgraded too.
"""
