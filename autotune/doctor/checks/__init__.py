"""One function per thing that tuning needs."""
