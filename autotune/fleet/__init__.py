"""Many hosts, one list: on each a worker tunes what the others do not; the studies' leases keep them apart."""
