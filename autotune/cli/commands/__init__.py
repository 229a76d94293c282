"""The commands, a file for each few that belong together."""
