"""How a study was found: its machine, its search, its versions."""

from __future__ import annotations

import dataclasses

from autotune.report.view import Table, View
from autotune.results.figures import device_text
from autotune.results.regimes import tuned_for
from autotune.results.study import Study
from autotune.text import counted


def view(study: Study) -> View:
    record, moment, restarts = study.record, study.last_moment, study.restarts
    rows = [
        ["device", device_text(record.key)],
        ["tuned for", tuned_for(record.key)],
        ["begun", f"{record.created_at:%Y-%m-%d %H:%M} UTC"],
        ["finished" if study.result else "last trial", f"{moment:%Y-%m-%d %H:%M} UTC" if moment else "none"],
        ["space", f"{record.space_size:,} valid configs" + f", {study.evaluated:,} tried" * bool(study.trials)],
        ["study", f"{record.id}, seed {record.seed}"],
    ]
    if study.trials:  # an imported study's are elsewhere
        correlation = study.rank_correlation
        measuring = f", of which measuring {study.measuring:.0f} s"
        model = "too few predictions" if correlation is None else f"{correlation:.2f} (Spearman; 1 is a perfect order)"
        rows += [
            ["finals", f"{study.remeasured} evaluations"],
            ["time in evaluations", f"{study.seconds:.0f} s" + measuring * (study.measuring > 0)],
            ["ranks restarted", f"{counted(len(restarts), 'time')}, {sum(restarts):.0f} s" if restarts else "never"],
            ["cost model", model],
        ]
    versions = dataclasses.asdict(record.provenance)
    rows.append(["space fingerprint", versions.pop("space")])
    rows += [[name.replace("_", " "), value or "none"] for name, value in versions.items()]
    return View("origin", "How this was found", tables=[Table(["", ""], rows, "ll")])
