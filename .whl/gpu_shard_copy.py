"""gpu_shard_copy of the findings, with today's names."""
import os, torch, torch.distributed as dist
from dataclasses import replace
import autotune
from autotune.ranks.measure import Stopwatch, combine
from autotune.workloads import workload

def main():
    rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank)); world = dist.get_world_size()
    w = workload("all_gather_gemm")
    with autotune.Context(4 << 30) as context:
        watch = Stopwatch(context.heap, context.machine, 1 << 21); context._mark = context.heap.mark()
        for m in (64, 512, 4096, 8192):
            problem = autotune.AllGatherGemm(m=m, n=8192 * world, k=8192, world_size=world)
            placed = replace(problem, in_place=True)
            a = torch.randn(problem.shard, device="cuda").bfloat16(); b = torch.randn(8192, problem.n_local, device="cuda").bfloat16()
            out = torch.empty(m, problem.n_local, device="cuda", dtype=torch.bfloat16)
            configs = {}
            for config in [*w.baselines(problem, context.machine).values(), *w.first_configs(problem, context.machine)]:
                configs.setdefault(config["mode"], config)
            for mode, config in configs.items():
                try:
                    shard = autotune.all_gather_shard(context, placed, config=config)
                except autotune.errors.AutotuneError as error:
                    if rank == 0: print(m, mode, str(error)[:150])
                    continue
                shard.copy_(a); found = {}
                calls = {"in place": lambda: autotune.all_gather_gemm(context, shard, b, out=out, in_place=True, config=config),
                         "ordinary": lambda: autotune.all_gather_gemm(context, a, b, out=out, config=config)}
                for name, call in calls.items():
                    call(); torch.cuda.synchronize(); context.heap.barrier()
                    times = watch.time(call, warmup=20, iterations=41); every = [None] * world
                    dist.all_gather_object(every, times.device, group=context.group); found[name] = combine(every).median
                if rank == 0: print(f"m={m} {mode:15s} A in place {found['in place']:8.1f} us   ordinary A {found['ordinary']:8.1f} us   {found['ordinary'] / found['in place'] - 1:+.1%}", flush=True)
            context.check(); context.release()
    os._exit(0)
main()
