"""What is wrong with this machine, and what to do about it: one small check for each thing that tuning needs."""

from autotune.doctor.examination import examine
from autotune.doctor.finding import Finding, Verdict
from autotune.doctor.host import Host

__all__ = ["Finding", "Host", "Verdict", "examine"]
