"""Commands about what has been tuned: looking at it, reports, files for other machines."""
