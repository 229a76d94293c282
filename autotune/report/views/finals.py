"""The finals: each finalist's latency round by round, and how it compares with the winner."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.config import Config
from autotune.outcome import Latency
from autotune.report import draw
from autotune.report.draw import GREY, WINNER
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import Ratio, change_text, latency_text, microseconds, plain, ratio
from autotune.results.library import baseline_name
from autotune.results.result import Result
from autotune.results.study import Study
from autotune.text import counted
from autotune.tuning.finals import last_finals, merge


@dataclass(frozen=True)
class Finalist:
    """One config of the finals with the rounds that it was in."""

    name: str
    config: Config
    rounds: tuple[Latency, ...]
    failed: str
    """The reason that it is out; empty if it is not."""

    @property
    def latency(self) -> Latency:
        return merge(self.rounds)


def view(study: Study) -> View | None:
    """None where the study had no finals of several rounds, or where they are not here."""
    report = study.result
    found = finalists(study)
    rounds = max((len(each.rounds) for each in found), default=0)
    if report is None or rounds < 2:
        return None
    text = f"{counted(len(found), 'config')} took turns for {rounds} rounds, in alternating order, so that common "
    text += "drift cancels. The ratios come round by round; ± is their 95 % interval."
    label = f"Latency of {counted(len(found), 'finalist')} over {rounds} rounds."
    chart = Chart("finals", label, options(study, found), 400)
    return View(
        "finals", "The finals, round by round", text, [chart], [table(report, found)], [conclusion(report, found)]
    )


def finalists(study: Study) -> list[Finalist]:
    """The last finals' configs: the winner, then from the fastest on, then those that failed."""
    rounds: dict[Config, list[Latency]] = {}
    failed: dict[Config, str] = {}
    for trial in last_finals(study.trials):
        rounds.setdefault(trial.config, [])
        if trial.evaluation.latency is not None:
            rounds[trial.config].append(trial.evaluation.latency)
        else:
            failed[trial.config] = f"{trial.evaluation.outcome.value}: {trial.evaluation.reason}"

    def place(config: Config) -> tuple[bool, bool, float]:
        known = rounds[config]
        return config in failed, config != study.winner, merge(known).of(study.regime) if known else 0.0

    counts: dict[str, int] = {}
    found = []
    for config in sorted(rounds, key=place):
        name = _name(study, config, counts)
        found.append(Finalist(name, config, tuple(rounds[config]), failed.get(config, "")))
    return found


def options(study: Study, found: list[Finalist]) -> Option:
    """A line for each finalist; the winner's is thick, baselines' are dashed."""
    baselines = _baselines(study)
    values = [latency.of(study.regime) for each in found for latency in each.rounds]
    ends = draw.bounds(values)
    count = max(len(each.rounds) for each in found)
    series: list[Option] = []
    for each in found:
        won = each.config == study.winner
        style: Option = {"width": 3 if won else 1.2, "type": "dashed" if each.config in baselines else "solid"}
        told = draw.config_lines(study, each.config)
        data = [
            {"value": round(min(latency.of(study.regime), ends["max"]), 3),
             "name": f"{each.name}, round {number}\n{microseconds(latency.of(study.regime))}\n{told}"}
            for number, latency in enumerate(each.rounds, start=1)
        ]  # fmt: skip
        colour = {"color": WINNER} if won else {"color": GREY} if each.config in baselines else {}
        series.append({"type": "line", "name": each.name, "data": data, "lineStyle": style, "symbolSize": 6,
                       "symbol": "circle", "z": 4 if won else 2, **colour})  # fmt: skip
    return draw.base(
        legend=draw.legend(),
        grid={"left": 8, "right": 16, "top": 54, "bottom": 30},
        xAxis={"type": "category", "data": [str(number + 1) for number in range(count)], "name": "round",
               "nameLocation": "middle", "nameGap": 24},
        yAxis=draw.time_axis(**ends),
        series=series,
    )  # fmt: skip


def table(report: Result, found: list[Finalist]) -> Table:
    rows = []
    for each in found:
        config = change_text(each.config, report.config)
        if each.failed:
            rows.append([each.name, "", "", f"out: {each.failed}", config])
            continue
        own = each.config == report.config
        compared = "" if own or report.key.is_interpreted else against(report, each).text
        rows.append([each.name, latency_text(each.latency, report.regime), compared, verdict(report, each), config])
    return Table(["finalist", "latency", "times the winner's", "", "config"], rows, "lrrll")


def against(report: Result, finalist: Finalist) -> Ratio:
    """The finalist's latency over the winner's, both of bound calls."""
    return ratio(finalist.latency, report.latency.bound, report.regime)


def verdict(report: Result, finalist: Finalist) -> str:
    """``slower``, ``faster`` or ``a tie``: within the error of the ratio."""
    if finalist.config == report.config:
        return "winner"
    found = against(report, finalist)
    if found.is_less:
        return "faster"
    return "slower" if found.value - found.error > 1 else "a tie"


def conclusion(report: Result, found: list[Finalist]) -> str:
    """The number of finalists that the winner beat, and the names of the others; empty where there were none."""
    others = [each for each in found if each.config != report.config and not each.failed]
    if not others:
        return ""
    slower = [each for each in others if verdict(report, each) == "slower"]
    text = f"The winner beat {len(slower)} of {counted(len(others), 'other')} beyond the noise."
    tied = [each.name for each in others if each not in slower]
    return text + (f" Within the noise, or not shown to be slower: {', '.join(tied)}." if tied else "")


def _baselines(study: Study) -> set[Config]:
    return {trial.config for trial in study.trials if trial.source == "baseline"}


def _name(study: Study, config: Config, counts: dict[str, int]) -> str:
    """Its mode with a number: ``push 2``; of a baseline what it calls."""
    mode = plain(config.get("mode", "config"))
    if config in _baselines(study):
        name = baseline_name(study.key, " ".join(str(config[each]) for each in ("mode", "launch") if each in config))
        return name if config != study.winner else f"winner: {name}"
    counts[mode] = counts.get(mode, 0) + 1
    if config == study.winner:
        return f"winner: {mode}"
    return f"{mode} {counts[mode]}"
