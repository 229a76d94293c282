"""What is wrong with this machine, and what to do about it: one small check for each thing that tuning needs."""

from autotune.doctor.examine import CHECKS, examine
from autotune.doctor.finding import Finding, Verdict
from autotune.doctor.host import Host

__all__ = ["CHECKS", "Finding", "Host", "Verdict", "examine"]
