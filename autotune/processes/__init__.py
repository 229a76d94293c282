"""Child processes: they start quickly, die with their parent, and their temporary folders are swept."""
