"""Child processes: how they are started, that they end with their parent, and what they leave is swept."""
