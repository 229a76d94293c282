"""An Optuna study that has nothing to do with GPUs, searched by ``autotune.tuning.JointSampler``.

    python docs/examples/optuna_study.py

The objective says how long a sort might take: three algorithms, each with its own parameters, one of which decides
whether there is another. Any objective will do: the sampler learns from the trials which parameters there are and which
of them depend on another's value. Prints what it reaches beside Optuna's own samplers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from autotune.tuning import JointSampler

TRIALS = 40
SEEDS = 10


def sort(trial: optuna.Trial) -> float:
    """Milliseconds; 60.6 at the least, by a radix sort of 11 bits."""
    kind = trial.suggest_categorical("kind", ["quick", "merge", "radix"])
    threads = trial.suggest_int("threads", 1, 64, log=True)
    cost = 100.0 * (1 + 0.15 * abs(math.log2(threads / 12)))
    if kind == "quick":
        cutoff, pivot = trial.suggest_int("cutoff", 1, 256), trial.suggest_categorical("pivot", ["first", "median"])
        return cost * (1 + 0.2 * abs(math.log2(cutoff / 24)) + (pivot == "first"))
    if kind == "merge":
        ways, buffer = trial.suggest_int("ways", 2, 32), trial.suggest_float("buffer", 0.0, 1.0)
        return cost * (0.9 + 0.05 * abs(ways - 8) + (buffer - 0.3) ** 2)
    bits = trial.suggest_int("bits", 1, 16)
    cost *= 0.6 + 0.1 * abs(bits - 11)
    if trial.suggest_categorical("prefetch", [False, True]):
        cost *= 1 + 0.1 * abs(math.log2(trial.suggest_int("ahead", 1, 128, log=True) / 16))
    else:
        cost *= 1.3
    if bits > 13:
        raise optuna.TrialPruned("the tables do not fit into memory")
    return cost


def found(sampler: BaseSampler, trials: int = TRIALS) -> float:
    """The least that a study with this sampler finds."""
    study = optuna.create_study(sampler=sampler)
    study.optimize(sort, n_trials=trials)
    return study.best_value


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers: dict[str, Callable[[int], BaseSampler]] = {
        "JointSampler": lambda seed: JointSampler(seed),
        "TPESampler": lambda seed: TPESampler(seed=seed),
        "RandomSampler": lambda seed: RandomSampler(seed=seed),
    }
    for name, make in samplers.items():
        least = [found(make(seed)) for seed in range(SEEDS)]
        print(f"{name:<14} mean {statistics.mean(least):5.1f} ms, worst {max(least):5.1f} ms")


if __name__ == "__main__":
    main()
