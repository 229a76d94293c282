"""What a driver's processes and files owe it: they go when it goes, however that happens."""
