"""The power of the check: kernels are broken one edit at a time, and the tuner's own evaluation has to find each out.

    python bench/check_power.py --jobs 8 --out m.jsonl  what interpreter ranks can show; run again, it goes on
    python bench/check_power.py --gpu                   two ranks, a GPU each: all mutants, at sizes for GPUs
    python bench/check_power.py --gpu --in-turns        two ranks take turns on one GPU, at any instruction
    python bench/check_power.py --print a.jsonl b.jsonl the score of what is in such files, together

Mutants (``mutants/``) are evaluated in a copy of the package as a trial is; what passes goes through a winner's proof.
Their cases (``mutant_cases.py``) are evaluated unbroken, too, and have to pass. A mutant is caught if it is in any
arrangement of ranks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mutant_cases import CASES, Case
from mutants import MUTANTS, Mutant

PACKAGE = Path(__file__).parent.parent / "autotune"
RANKS = 2
POLLS = 1 << 13
"""Before a wait times out under the interpreter: about eight seconds, where the tuner waits for twenty. A late rank is
held for three times as long as a call takes; two seconds were too few for unbroken kernels whose call takes one.
"""
DEADLINE = {True: 60.0, False: 150.0}
"""Seconds that ranks may take for a phase, on GPUs and under the interpreter."""
LIMIT = {True: 300.0, False: 1200.0}
INTERPRETED, GPU_EACH, IN_TURNS = "interpreter", "a GPU each", "one GPU in turns"
SOUND = "unbroken"
EVALUATION, PROOF, NOTHING, BROKEN = "evaluation", "proof", "nothing", "the mutant itself is broken"


class ForkedRank:
    """Stands in for ``start_python`` in the gang: a rank in which what this process has imported is there already.

    A fork server for each mutant's package would import torch and Triton, which takes longer than the evaluation.
    """

    def __init__(self, module: str, connection: Any, *, environment: dict[str, str], log: Any, imports: str) -> None:
        self.returncode: int | None = None
        driver = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                os.environ.clear()
                os.environ.update(environment)
                sys.argv = [module, str(connection.fileno()), str(driver)]
                importlib.import_module(module).main()
            finally:
                os._exit(1)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            time.sleep(0.01)
        return self.returncode or 0


def applied(mutant: Mutant) -> str:
    """The file's text with the edits. Raises ValueError where a snippet does not occur as often as the table says."""
    text = (PACKAGE / mutant.file).read_text()
    for snippet, instead, *times in mutant.edits:
        wanted, found = times[0] if times else 1, text.count(snippet)
        if found != wanted:
            raise ValueError(f"{mutant.name}: {mutant.file} has the snippet {found} times, not {wanted}: {snippet!r}")
        text = text.replace(snippet, str(instead))
    return text


def evaluated(case: Case, seed: int, gpu: bool) -> dict[str, Any]:
    """The end of a case's evaluation and, if that passes, of its proof; by the package that this process imports."""
    from autotune.config import Config
    from autotune.machine import INTERPRETED, machine
    from autotune.outcome import Outcome
    from autotune.ranks import gang as gangs
    from autotune.ranks.evaluation import MeasurePlan
    from autotune.task import Task
    from autotune.workloads import workload

    here = machine() if gpu else INTERPRETED
    if not gpu:
        gangs.SPIN_LIMITS = {**gangs.SPIN_LIMITS, "interpreter": POLLS}
        gangs.start_python = ForkedRank  # type: ignore[assignment]
    found = workload(case.workload)
    problem, config = found.problem_type(**case.problem, world_size=RANKS), Config(case.config)
    violation = found.space.violation(config, Task(problem, here))
    if violation is not None:
        return {"by": BROKEN, "outcome": str(Outcome.INVALID), "reason": str(violation)}
    plan = MeasurePlan(2, 5, 15) if gpu else MeasurePlan(0, 1, 1)
    deadlines = dict.fromkeys(("check", "measure", "start"), DEADLINE[gpu])
    with gangs.Gang(found, Task(problem, here), deadlines=deadlines) as gang:
        first = gang.evaluate(config, seed, plan)
        if first.latency is None:
            return {"by": EVALUATION, "outcome": str(first.outcome), "reason": first.reason}
        proof = gang.prove(config, seed + 1, first.latency.median)
        if proof is not None:
            return {"by": PROOF, "outcome": str(proof.outcome), "reason": proof.reason}
        return {"by": NOTHING, "outcome": str(Outcome.MEASURED), "reason": f"error {first.error:.1e}"}


def evaluate(mutant: Mutant | None, case: Case, seed: int, gpu: bool) -> dict[str, Any]:
    """``evaluated`` in a process of its own, on a copy of the package, with a mutant's edits."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "autotune")
        # Compiled files, too: to compile the package takes each process a second.
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("assets", "data"))
        if mutant is not None:
            changed = copy / mutant.file
            changed.write_text(applied(mutant))
            for compiled in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
                compiled.unlink()  # it would pass for the mutant's if that were as long and as old
        answer, begun = Path(folder, "answer"), time.monotonic()
        pid = os.fork()
        if pid == 0:
            _answer(folder, answer, case, seed, gpu)
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() - begun > LIMIT[gpu]:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.05)
        said = {"by": BROKEN, "outcome": "", "reason": "no answer"}
        if answer.exists():
            said = json.loads(answer.read_text())
        return {**said, "seconds": round(time.monotonic() - begun, 1)}


def _answer(folder: str, answer: Path, case: Case, seed: int, gpu: bool) -> None:
    os.setsid()
    os.chdir(folder)  # neither driver nor ranks find the unbroken package
    sys.path.insert(0, folder)
    try:
        import autotune

        assert Path(autotune.__file__).is_relative_to(folder), autotune.__file__
        said = evaluated(case, seed, gpu)
    except Exception as error:  # noqa: BLE001  a mutant may raise anything; who reads the table wants to see it
        said = {"by": BROKEN, "outcome": type(error).__name__, "reason": str(error)[-500:]}
    answer.write_text(json.dumps(said))
    os._exit(0)


Work = tuple[str, Mutant | None, Case]


def on_a_device(devices: SimpleQueue[str]) -> None:
    if not devices.empty():
        os.environ["CUDA_VISIBLE_DEVICES"] = devices.get()


def row_of(work: Work, seed: int, gpu: bool) -> dict[str, Any]:
    name, mutant, case = work
    return {"name": name, **evaluate(mutant, case, seed, gpu)}


def in_parallel(
    work: Sequence[Work], jobs: int, seed: int, gpu: bool, devices: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Each piece of work's row, as it is done; ``jobs`` at a time, in processes forked from this one.

    ``devices`` are what ``CUDA_VISIBLE_DEVICES`` may be; none: all jobs see what this process sees.
    """
    context = get_context("fork")
    free = context.SimpleQueue()
    for job in range(jobs if devices else 0):
        free.put(devices[job % len(devices)])
    with ProcessPoolExecutor(jobs, context, on_a_device, (free,)) as pool:
        for done in as_completed([pool.submit(row_of, each, seed, gpu) for each in work]):
            yield done.result()


def import_libraries() -> None:
    """Import once what evaluations need besides the package, of which each has its own copy."""
    before = set(sys.modules)
    sys.path.insert(0, str(PACKAGE.parent))
    importlib.import_module("autotune.ranks.imports")
    sys.path.pop(0)
    for name in [name for name in sys.modules.keys() - before if name.partition(".")[0] == PACKAGE.name]:
        del sys.modules[name]
    import torch

    torch.set_num_threads(1)


def visible_gpus() -> list[str]:
    """This machine's GPUs by the names that ``CUDA_VISIBLE_DEVICES`` knows them by.

    Another process counts them: in one that has touched a GPU no forked one could use any.
    """
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    count = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def chosen(only: str, gpu: bool, hardware: bool = False) -> list[Work]:
    """The evaluations to run: cases unbroken, then the mutants that show here; with ``hardware``, only here."""
    here = [each for each in MUTANTS if not each.equivalent]
    here = [each for each in here if (each.hardware if hardware else gpu or not each.hardware)]
    mutants = [each for each in here if re.search(only, each.name)]
    cases = dict.fromkeys(each.case for each in mutants)
    work: list[Work] = [(f"{case}: {SOUND}", None, CASES[case]) for case in cases]
    work += [(each.name, each, CASES[each.case]) for each in mutants]
    return [(name, mutant, case.on_gpu() if gpu else case) for name, mutant, case in work]


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """The score, what survived, and sound kernels that did not pass.

    A mutant counts as caught if it was in any arrangement; a sound kernel has to pass in all of them.
    """
    mutants, sound = dict[str, list[dict[str, Any]]](), dict[str, list[dict[str, Any]]]()
    for row in rows:
        (sound if row["name"].endswith(SOUND) else mutants).setdefault(row["name"], []).append(row)
    by = {how: {name for name, found in mutants.items() if how in seen(found)} for how in (EVALUATION, PROOF, NOTHING)}
    caught = by[EVALUATION] | by[PROOF]
    counted = len(caught | by[NOTHING])
    share = f"{len(caught) / counted:.1%}" if counted else "none"
    alone = len(by[EVALUATION])
    lines = [f"{counted} mutants: {len(caught)} caught ({share}), {alone} of them by the evaluation alone"]
    lines += by_arrangement([row for row in rows if row["name"] in caught and row["by"] in (EVALUATION, PROOF)])
    lines += [f"  survives: {name}" for name in mutants if name in by[NOTHING] - caught]
    lines += [
        f"  to be mended in the table: {name}: {found[0]['outcome']} {found[0]['reason']}"
        for name, found in mutants.items()
        if seen(found) == {BROKEN}
    ]
    refused = [row for found in sound.values() for row in found if row["by"] != NOTHING]
    lines += [f"  unbroken, yet refused: {row['name']} ({row.get('on')}): {row['reason']}" for row in refused]
    lines += [f"{len(sound)} cases unbroken: {sum(seen(found) == {NOTHING} for found in sound.values())} pass"]
    return "\n".join(lines)


def seen(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {row["by"] for row in rows}


def by_arrangement(caught: Sequence[dict[str, Any]]) -> list[str]:
    """How many mutants each arrangement caught, and which no other did; nothing where there is one arrangement."""
    names: dict[str, set[str]] = {}
    for row in caught:
        names.setdefault(row.get("on", ""), set()).add(row["name"])
    lines = []
    for on, found in names.items():
        alone = found.difference(*(others for other, others in names.items() if other != on))
        lines.append(f"  {on}: {len(found)} caught; by it alone: {', '.join(sorted(alone)) or 'none'}")
    return lines if len(names) > 1 else []


def rows_of(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def expression(text: str) -> str:
    """A regular expression. Not among ``arguments``, which import the package: here a mutant's copy comes first."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not a regular expression: {error}") from error
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=expression, default="", help="a regular expression for names of mutants")
    parser.add_argument("--jobs", type=int, default=1, help="evaluations at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON lines; what is there already is not evaluated again")
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPUs; in turns if there is only one")
    parser.add_argument("--in-turns", action="store_true", help="with --gpu: two ranks on one GPU, whatever there is")
    parser.add_argument("--hardware", action="store_true", help="with --gpu: those alone that only GPUs can show")
    parser.add_argument("--print", type=Path, nargs="+", metavar="FILE", help="evaluate nothing: the score of --out's")
    options = parser.parse_args()
    if options.print:
        if absent := [str(file) for file in options.print if not file.is_file()]:
            parser.error(f"--print: no such file: {', '.join(absent)}")
        print(summary(rows_of(options.print)))
        return
    if options.hardware and not options.gpu:
        parser.error("--hardware needs --gpu: under the interpreter these mutants give right results")
    if options.in_turns and not options.gpu:
        parser.error("--in-turns needs --gpu: ranks of the interpreter share no GPU")
    if not chosen(options.only, options.gpu, options.hardware):
        parser.error(f"--only {options.only}: no mutant that can show here has such a name")
    for mutant in MUTANTS:
        applied(mutant)
    if not options.gpu:
        os.environ |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    import_libraries()
    devices = visible_gpus() if options.gpu else []
    if options.gpu and not devices:
        parser.error("--gpu: torch finds no GPU here")
    on = INTERPRETED if not options.gpu else IN_TURNS if options.in_turns or len(devices) < RANKS else GPU_EACH
    rows = rows_of([options.out] if options.out else [])
    known = {row["name"] for row in rows if row.get("on", on) == on}
    work = [piece for piece in chosen(options.only, options.gpu, options.hardware) if piece[0] not in known]
    for row in in_parallel(work, options.jobs, options.seed, options.gpu, devices if on == IN_TURNS else ()):
        row |= {"on": on}
        rows.append(row)
        told = f"{row['by']:12s} {row['seconds']:6.1f} s  {row['name']:60s} {row['outcome']}"
        print(f"{told}: {row['reason'][:90]}", flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(summary(rows))


if __name__ == "__main__":
    main()
