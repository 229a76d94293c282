"""One of vLLM's engines: tokens of two prompts, and per rank the calls of our operators, as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

PROMPTS = [list(range(3, 8)), list(range(3, 12))]


def calls(worker: Any) -> dict[str, int]:
    import iris_autotune_vllm

    return dict(iris_autotune_vllm.CALLS)


def run(model: str, options: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model, skip_tokenizer_init=True, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64,
        dtype="float32", seed=0, **options,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=6, temperature=0, detokenize=False, logprobs=1)
    made = [llm.generate({"prompt_token_ids": each}, sampling)[0].outputs[0] for each in PROMPTS]
    return {
        "tokens": [list(each.token_ids) for each in made],
        "logprobs": [each.cumulative_logprob for each in made],
        "calls": llm.collective_rpc(calls),
    }


if __name__ == "__main__":
    print("RESULT", json.dumps(run(sys.argv[1], json.loads(sys.argv[2]))), flush=True)
    os._exit(0)  # vLLM gives its processes five seconds to end; the test ends them
