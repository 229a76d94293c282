"""The doctor: one small check per thing that tuning needs, each with its fix."""

from autotune.doctor.examination import examine
from autotune.doctor.finding import Finding, Verdict
from autotune.doctor.host import Host

__all__ = ["Finding", "Host", "Verdict", "examine"]
