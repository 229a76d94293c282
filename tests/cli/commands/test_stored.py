"""What a decorated kernel stored: shown, reported, exported, imported elsewhere and served there."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import webbrowser
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import triton
from fakes import Bench, latency_of
from small_kernels import SIZES, Clock, copy, grid, tensors

import autotune
from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, Winner
from autotune.errors import InputError
from autotune.runtime.entries import forget_entries

KEY = "copy --n 200 --x.dtype float32"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which a program has tuned its kernel ``copy`` for two sizes."""
    file = tmp_path_factory.mktemp("tuned") / "cache.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        launched(Clock(3, 1, 2), 200, db=str(file))
        launched(Clock(1, 2, 3), 64, db=str(file))
    return file


@pytest.fixture
def kernel(laptop: Bench, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A user with a copy of that database."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shutil.copy(tuned, tmp_path / "cache.db")
    forget_entries()
    return laptop


def launched(clock: Clock, n: int, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """What a fresh program's launch was served."""
    decorated = autotune.autotune(**{"configs": SIZES, "key": ["n"], "do_bench": clock, **options})(copy())
    decorated.forget()
    out, x = (each.to(dtype) for each in tensors(n))
    decorated[grid](out, x, n)
    torch.testing.assert_close(out, x)
    (found,) = decorated.decisions.values()
    return found


def test_show_one_in_full_by_its_fields(kernel: Bench) -> None:
    shown = kernel.tune("show", *KEY.split())
    assert shown.exit_code == 0, shown.output
    for text in (
        "1.000 ms",
        "config = triton.Config({'BLOCK': 64}, num_warps=4",
        "BLOCK=64",
        "small_kernels.py:copy",
        "source and configs",
        "source_hash",
    ):
        assert text in shown.stdout
    assert "--regime" not in shown.stdout
    values = kernel.json("show", "copy", "--n=200")
    assert values["found"] and [each["config"]["BLOCK"] for each in values["entries"]] == [64]


def test_show_several_as_a_list(kernel: Bench) -> None:
    shown = kernel.tune("show", "copy")
    assert shown.exit_code == 0 and len(shown.stdout.splitlines()) == 3
    assert "next: one of them in full: tune show copy --study 2" in shown.stderr
    one = kernel.tune("show", "copy", "--study", "2")
    assert one.exit_code == 0 and one.stdout.startswith("copy  n=64 ")
    assert kernel.tune("show", "copy", "--study", "1").stdout.startswith("copy  n=200 ")
    empty = kernel.tune("show", "copy", "--n=", "--study", "1")
    assert empty.exit_code == 2 and "--n : write a number" in empty.stderr, "the next word is no value of it"
    for words in (("--device", "another"), ("--regime", "isolated")):
        other = kernel.tune("export", "copy", *words)
        assert (
            other.exit_code == 1
            and f"no finished study of copy {'on' if words[1] == 'another' else 'for'} " in other.stderr
        )


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("show copy --n 7", 1, "no finished study of copy --n 7"),
        ("show copy --rows 7", 2, "copy has no field rows; it has n, out.dtype, x.dtype"),
        ("show copy 7", 2, "expected a field of the kernel's key and its value, such as --M 4096"),
        ("show copy --n", 2, "expected a field"),
        ("show copy --n 200 --study 2", 2, "study 2 is none of these: 1"),
        ("show cpoy", 2, "no workload named 'cpoy'; workloads: all-gather-gemm, "),
        ("report cpoy", 2, "; did you mean copy?"),
        ("export all-gater-gemm", 2, "; did you mean all-gather-gemm?"),
        ("export copy --format vllm --by x.dtype", 2, "no integer field of copy: n, out.dtype, x.dtype"),
        ("show copy --db /nowhere/at/all.db", 2, "no workload named 'copy'"),
    ],
)
def test_what_is_not_there(kernel: Bench, words: str, code: int, told: str) -> None:
    result = kernel.tune(*words.split())
    assert (result.exit_code, result.stdout) == (code, "") and told in result.stderr


def test_several_of_a_workload_that_is_not_here_are_told_as_they_were_tuned(gpus: Bench) -> None:
    assert gpus.tune("all-gather-gemm", "--trials", "2", "--effort", "quick").exit_code == 0
    key = CacheKey("all_gather_gemm_2", '{"m":64,"world_size":4}', 4, "Some GPU", "sm_90", "nvlink", "isolated")
    winner = Winner(Config({"mode": "push"}), latency_of(100.0, 4, 200.0, 300.0), {"bsp": latency_of(900.0, 4)})
    with Store.open() as store:
        for m in (64, 32):
            of = dataclasses.replace(key, problem=key.problem.replace("64", str(m)))
            store.finish(store.study(of, Provenance("s", "p", "3", "i", "t", "d"), seed=0, space_size=1).id, winner)
        newest, *_ = store.entries()
    shown = gpus.tune("show", "all-gather-gemm-2")
    _, first, _ = shown.stdout.splitlines()
    assert shown.stderr.endswith(" --study 3\n")
    assert re.split(r"  +", first) == [
        "3", "m=32 --regime isolated", "4", "Some GPU", "300.0 µs ± 1.0 %", "3.00x bsp", "mode=push",
        f"{newest.finished_at:%Y-%m-%d %H:%M}",
    ]  # fmt: skip
    assert gpus.tune("show", "other").stderr.partition("; stored in ")[2].endswith(": all-gather-gemm-2\n")


def test_reports_and_exports_are_of_the_database_and_go_where_they_are_told(
    kernel: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: shown.append(url) or True)
    db, file, pages = ("--db", str(tmp_path / "here.db")), tmp_path / "report.md", tmp_path / "pages"
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "empty.db"))
    (tmp_path / "cache.db").rename(tmp_path / "here.db")
    Store.open().close()
    assert kernel.tune("report", *KEY.split(), *db, "-o", str(file)).stdout == ""
    assert file.read_text().startswith("# copy: n=200")
    assert kernel.tune("report", "copy", *db, "--all", "-o", str(pages)).exit_code == 0 and not shown
    assert len([*pages.glob("*.html")]) == 3, "two, and their index"
    page = tmp_path / "one.html"
    assert kernel.tune("report", *KEY.split(), *db, "--open", "-o", str(page)).exit_code == 0
    assert [url.endswith("/one.html") for url in shown] == [True]
    assert len(json.loads(kernel.tune("export", "copy", *db).stdout)["entries"]) == 2


def test_reports_say_how_to_repeat_it(kernel: Bench) -> None:
    text = kernel.tune("report", *KEY.split()).stdout
    assert text.startswith("# copy: n=200") and "tuned for calls under the interpreter" in text and "BLOCK=32" in text
    assert "To repeat: `copy.tune(…, grid=…) in small_kernels.py, with n=200" in text
    assert not any(claim in text for claim in ("finals |", "in a graph", "the device's time"))
    assert "`tune copy" not in text and "Against the baselines" not in text and "finals, where" not in text
    page = kernel.tune("report", *KEY.split(), "--format", "html").stdout
    assert page.startswith("<!DOCTYPE html>") and "copy.tune(…, grid=…) in small_kernels.py" in page


def test_a_file_takes_it_to_another_machine_where_a_launch_is_served(kernel: Bench, tmp_path: Path) -> None:
    file, there = tmp_path / "configs.json", str(tmp_path / "there.db")
    assert kernel.tune("export", "copy", "-o", str(file)).stderr == f"wrote 2 configs to {file}\n"
    assert {entry["origin"] for entry in json.loads(file.read_text())["entries"]} == {"small_kernels.py:copy"}
    tried = kernel.tune("import", str(file), "--dry-run", "--db", there)
    assert tried.exit_code == 0 and "a decorated kernel of small_kernels.py:copy" in tried.stdout
    assert not Path(there).exists()
    assert kernel.tune("import", str(file), "--db", there).stderr.endswith("2 new\n")
    assert kernel.tune("import", str(file), "--db", there).stderr == "2 there already\n"
    found = launched(Clock(), 200, db=there)
    assert (found.source, found.config["BLOCK"]) == ("exact", 64)
    assert "imported 20" in kernel.tune("show", *KEY.split(), "--db", there).stdout
    assert kernel.tune("export", "copy", "--db", there).stdout == file.read_text()


def test_another_source_or_list_is_not_served_what_was_imported(kernel: Bench, tmp_path: Path) -> None:
    file, there = tmp_path / "configs.json", str(tmp_path / "there.db")
    file.write_text(kernel.tune("export", "copy").stdout)
    kernel.tune("import", str(file), "--db", there)
    found = launched(Clock(), 200, db=there, configs=SIZES[:2], on_miss="default")
    assert found.source == "default" and "stale" in found.reason


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("problem", "n"), {"a": 1}, "problem.n"),
        (("problem", "n"), [[1, [float("nan")]]], "problem.n.0.1.0: not a finite"),
        (("trained_by",), "x", "trained_by"),
    ],
)
def test_a_bad_file_stores_nothing(
    kernel: Bench, tmp_path: Path, place: tuple[str, ...], value: Any, told: str
) -> None:
    values = json.loads(kernel.tune("export", "copy").stdout)
    inner = values["entries"][1]
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    file, there = tmp_path / "configs.json", tmp_path / "there.db"
    file.write_text(json.dumps(values))
    result = kernel.tune("import", str(file), "--db", str(there))
    assert result.exit_code == 2 and told in result.stderr
    assert result.stderr.endswith("; nothing was imported\n") and not there.exists()


def test_a_regime_that_kernels_do_not_have_is_refused(kernel: Bench, tmp_path: Path) -> None:
    values = json.loads(kernel.tune("export", *KEY.split()).stdout)
    values["entries"][0]["regime"] = "isolated"
    file = tmp_path / "configs.json"
    file.write_text(json.dumps(values))
    result = kernel.tune("import", str(file), "--db", str(tmp_path / "there.db"))
    assert result.exit_code == 1 and "a decorated kernel's results are of the regime graph" in result.stdout


def test_odd_key_arguments_travel_too(kernel: Bench, tmp_path: Path) -> None:
    values = json.loads(kernel.tune("export", *KEY.split()).stdout)
    values["entries"][0]["problem"] |= {"scale": 1.5, "flag": None, "shape": [1, [2, "x"], True]}
    file, there = tmp_path / "configs.json", str(tmp_path / "there.db")
    file.write_text(json.dumps(values))
    assert kernel.tune("import", str(file), "--db", there).exit_code == 0
    assert json.loads(kernel.tune("export", "--db", there).stdout) == values


def test_a_workload_of_a_file_says_which_file_is_needed_and_loads_none(
    toy: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toy.tune("toy-sum", "--trials", "5").exit_code == 0
    file, there = tmp_path / "configs.json", str(tmp_path / "there.db")
    exported = toy.tune("export", "toy-sum").stdout
    [entry] = json.loads(exported)["entries"]
    assert entry["origin"] == "toy_workload.py:ToyWorkload"
    monkeypatch.delenv("AUTOTUNE_WORKLOADS")
    monkeypatch.chdir(tmp_path)
    Path("toy_workload.py").write_text("raise SystemExit('it ran')")
    for text in (exported, exported.replace("toy_workload.py:ToyWorkload", str(tmp_path / "toy_workload.py:Toy"))):
        file.write_text(text)
        result = toy.tune("import", str(file), "--db", there)
        assert result.exit_code == 1 and result.stderr.endswith("1 unknown workload\n")
        assert f"source_hash {entry['provenance']['source_hash']}" in result.stdout
        assert "toy_workload.py on this machine, set AUTOTUNE_WORKLOADS to its path" in result.stdout
    assert toy.json("list", "--db", there) == []
    text = toy.tune("show", "toy-sum").stdout
    assert "toy_workload.py:ToyWorkload" in text and "a launch is served" not in text


def test_configs_by_size_are_written_and_read_as_vllm_keeps_them(kernel: Bench, tmp_path: Path) -> None:
    file = tmp_path / "E=8,N=14336.json"
    assert kernel.tune("export", "copy", "--format", "vllm", "-o", str(file)).exit_code == 0
    values = json.loads(file.read_text())
    assert values.pop("triton_version") == triton.__version__
    assert {int(size): config["BLOCK"] for size, config in values.items()} == {64: 32, 200: 64}
    assert set(values["64"]) == {"BLOCK", "num_warps", "num_stages"}
    read = autotune.configs_by_size(file)
    assert list(read) == [64, 200] and read.nearest(1)["BLOCK"] == 32 and read.nearest(10**6)["BLOCK"] == 64
    found = launched(Clock(2, 1), 300, configs=read.listed())
    assert (found.source, found.config["BLOCK"]) == ("tuned", 64)
    result = kernel.tune("import", str(file))
    assert result.exit_code == 2 and "autotune.configs_by_size(FILE)" in result.stderr


def test_sizes_of_several_kinds_are_told_apart(kernel: Bench) -> None:
    launched(Clock(1, 2, 3), 64, torch.float16)
    result = kernel.tune("export", "copy", "--format", "vllm")
    assert result.exit_code == 2
    assert "the entries differ in out.dtype, x.dtype too; choose with --out.dtype VALUE" in result.stderr
    one = kernel.tune("export", "copy", "--format", "vllm", "--out.dtype", "float16")
    assert list(json.loads(one.stdout)) == ["triton_version", "64"]
    with Store.open() as store:
        assert len(store.entries()) == 3


def test_studies_go_to_an_optuna_storage_of_their_own(kernel: Bench, tmp_path: Path) -> None:
    file = tmp_path / "optuna.db"
    words = ("export", "copy", "--format", "optuna", "-o", str(file))
    file.touch()  # a file of nothing is nobody's
    for _ in range(2):
        result = kernel.tune(*words)
        assert result.exit_code == 0, "again it adds nothing"
        assert result.stderr == f"wrote 6 trials to {file}; next: optuna-dashboard sqlite:///{file}\n"
    url = f"sqlite:///{file}"
    studies = [optuna.load_study(study_name=name, storage=url) for name in optuna.get_all_study_names(url)]
    assert [len(study.trials) for study in studies] == [3, 3]
    best = {json.loads(study.user_attrs["problem"])["n"]: study.best_params["BLOCK"] for study in studies}
    assert best == {200: 64, 64: 32} and studies[0].user_attrs["winner"]["BLOCK"] in (32, 64)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (None, "an Optuna storage is a file: name it with --output"),
        ("notes.db", "exists and is no Optuna storage; name a new file"),
        ("cache.db", "exists and is no Optuna storage; name a new file"),
        ("no/such.db", "No such file or directory"),
    ],
)
def test_no_other_file_becomes_an_optuna_storage(kernel: Bench, tmp_path: Path, file: str | None, told: str) -> None:
    (tmp_path / "notes.db").write_text("somebody's notes\n" * 100)
    before = (tmp_path / "cache.db").read_bytes()
    output = ["-o", str(tmp_path / file)] if file else []
    result = kernel.tune("export", "copy", "--format", "optuna", *output)
    assert result.exit_code == 2 and told in result.stderr
    assert (tmp_path / "cache.db").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON list"),
        ("{}", "no sizes"),
        ('{"triton_version": "3.4.0"}', "no sizes"),
        ('{"M": {"BLOCK": 1}}', "size 'M' is not a positive integer"),
        ('{"64": {"BLOCK": 1}, "64": {"BLOCK": 2}}', "names 64 twice"),
        ('{"0": {"BLOCK": 1}}', "size '0' is not a positive integer"),
        (f'{{"{"9" * 5000}": {{"BLOCK": 1}}}}', "999' is not a positive integer"),
        ('{"64": 7}', "size 64: expected an object"),
        ('{"64": {"BLOCK": [1]}}', "size 64: BLOCK is [1]; allowed: text, integers, flags"),
    ],
)
def test_a_file_by_size_with_a_mistake(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        autotune.configs_by_size(file)
    assert str(caught.value).startswith(f"{file}: ") and told in str(caught.value)
    with pytest.raises(InputError, match="No such file"):
        autotune.configs_by_size(tmp_path / "none.json")
