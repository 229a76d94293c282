"""Modules and styles compute what torch's do, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_of_functions import run_ranks
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor import parallel as theirs
from two_ranks import A_GPU_EACH, sampled

import autotune

ON_RANKS = str(Path(__file__).with_name("nn_on_ranks.py"))
FP32 = 1e-5

Pair = dict[str, list[Any]]


@pytest.fixture(scope="module", params=sampled(A_GPU_EACH))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The answers of two ranks, by the function called."""
    folder = tmp_path_factory.mktemp("pair")
    gpu, sample = request.param
    argument = (f"sqlite:///{folder / 'none.db'}", sample)
    answers = run_ranks(ON_RANKS, "everything", 2, folder, gpu=gpu, argument=argument)
    return {"sample": [sample], **{name: [answer[name] for answer in answers] for name in answers[0]}}


def test_an_mlp_of_our_modules_is_the_whole_one_with_its_gradients(pair: Pair) -> None:
    for found in pair["modules"]:
        assert len(found) == 3 * 9
        assert max(found.values()) < FP32, found


def test_a_block_by_our_styles_is_the_one_by_torchs_with_its_gradients(pair: Pair) -> None:
    for found in pair["styles"]:
        assert len(found) == (4 if pair["sample"] == [True] else 5) * 5 + 4
        assert max(found.values()) < FP32, found


def test_every_layout_and_layers_that_ranks_do_not_divide_are_as_in_torch(pair: Pair) -> None:
    for found in pair["corners"]:
        refused = {
            "no weights yet": "meta", "computed weight": "from_linear", "more parameters": "scale",
            "uneven": "out_features=15", "mesh": "2 dimensions", "input's mesh": "DeviceMesh",
        }  # fmt: skip
        assert all(word in found.pop(name) for name, word in refused.items())
        assert len(found) == 2 * 2 * ((8 if pair["sample"] == [True] else 16) + 1) + 5
        assert max(found.values()) < FP32, found


def test_what_torchs_styles_hand_on_may_still_be_under_way(pair: Pair) -> None:
    for found in pair["under way"]:
        assert len(found) == 1 + 3
        assert max(found.values()) < FP32, found


def test_layers_take_over_what_the_others_have_and_draw_what_they_have_not(pair: Pair) -> None:
    for found in pair["made"]:
        assert found["taken over"] == [[False, True, "torch.bfloat16", "torch.bfloat16"]] * 4
        assert found["sizes"] == [[8, 8], [8, 16], [8, 8], [16, 8]], "from a whole layer and from a shard"
        assert found["without a bias"] == [True] * 4
        column, bias, row, zero = found["drawn"]
        assert all(0.1 < each <= 0.125 for each in (column, bias, row)), "by the depth of the whole layer"
        assert zero == 0, "all ranks have the same"
        assert found["vector"] < FP32
        assert found["its type"] == "torch.bfloat16" and found["autocast"] < 3e-2


def test_what_is_gathered_is_kept_where_that_is_asked_for(pair: Pair) -> None:
    for found in pair["keeping"]:
        assert found == [False] * 5 + [True] * 5, "a module, a style, a tuned one, a tuned plan, a module of a vector"


def test_styles_hand_on_what_torchs_do(pair: Pair) -> None:
    for found in pair["handed on"]:
        assert all(ours == others for ours, others in found.pop("kinds"))
        assert "(1, 0)" in found.pop("other order")
        assert found.pop("kept") is False, "though the module failed"
        assert found.pop("alone") == [False], "A is returned where another layer takes it"
        assert len(found) == 2 * 6 + 4
        assert max(found.values()) < FP32, found


def test_a_tuned_plan_is_the_given_one_but_for_its_gathers() -> None:
    context: Any = object()
    row = autotune.nn.tuned(theirs.RowwiseParallel(output_layouts=Shard(1), use_local_output=False), context)
    assert isinstance(row, autotune.nn.RowwiseParallel) and row.context is context
    assert (row.output_layouts, row.use_local_output) == ((Shard(1),), False)
    column = autotune.nn.tuned(theirs.ColwiseParallel(input_layouts=Shard(1), use_local_output=False), context)
    assert isinstance(column, autotune.nn.ColwiseParallel)
    assert (column.input_layouts, column.use_local_output) == ((Shard(1),), False)

    class Theirs(theirs.ColwiseParallel):
        pass

    class Others(theirs.RowwiseParallel):
        pass

    wanted = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    kept = [Theirs(), Others(), theirs.SequenceParallel(), theirs.PrepareModuleInput(**wanted, use_local_output=True)]
    assert all(autotune.nn.tuned(each, context) is each for each in kept)
    given = theirs.PrepareModuleInput(
        input_layouts=(Shard(1), Partial(), Shard(1), None),
        desired_input_layouts=(Replicate(), Replicate(), Shard(0), None),
        input_kwarg_layouts={"mask": Shard(0)}, desired_input_kwarg_layouts={"mask": Replicate()},
    )  # fmt: skip
    for share in (False, True):
        found: Any = autotune.nn.tuned(given, context, share_gather=share)
        assert found.input_layouts == (Shard(1), Partial(), Shard(1), None) and not found.use_local_output
        assert found.desired_input_layouts == (Shard(1), Replicate(), Shard(0), None)
        assert found.input_kwarg_layouts == {"mask": Shard(0)}
        assert found.desired_input_kwarg_layouts == {"mask": Replicate()}
