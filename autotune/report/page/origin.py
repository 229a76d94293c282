"""A study's provenance."""

from __future__ import annotations

import dataclasses

from autotune.report.page.study import Study, last_moment
from autotune.report.page.view import Table
from autotune.results.figures import device_text
from autotune.results.regimes import tuned_for
from autotune.text import counted, visible


def provenance(study: Study) -> Table:
    record, report = study.record, study.report
    versions = dataclasses.asdict(record.provenance)
    moment = last_moment(study)
    here = bool(study.trials)  # an imported study's are elsewhere
    rows = [
        ["device", device_text(record.key)],
        ["tuned for", tuned_for(record.key)],
        ["begun", f"{record.created_at:%Y-%m-%d %H:%M} UTC"],
        ["finished" if report else "last trial", f"{moment:%Y-%m-%d %H:%M} UTC" if moment else "none"],
        ["space", f"{record.space_size} valid configs" + f", {study.evaluated} evaluated" * here],
        ["study", f"{record.id}, seed {record.seed}"],
    ]
    if report is not None and here:
        spent = f"{report.seconds:.0f} s, of which measuring {report.measuring:.0f} s"
        restarts = f"{counted(report.restarts, 'time')}, {report.restarting:.0f} s" if report.restarts else "never"
        correlation = report.rank_correlation
        model = "too few predictions" if correlation is None else f"{correlation:.2f} (Spearman; 1 is a perfect order)"
        rows += [["time in evaluations", spent], ["ranks restarted", restarts], ["cost model", model]]
    rows += [[name.replace("_", " "), visible(value) or "none"] for name, value in versions.items()]
    return Table(["", ""], rows, "ll")
