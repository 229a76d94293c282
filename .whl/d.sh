. .whl/setup.sh
[ -d /tmp/results ] || tar xzf .whl/results.tgz -C /tmp
L=${1:-300}
timeout -s INT 140 python3 bench/results.py --only ar-28672 --folder /tmp/results > $OUT/ar.txt 2>&1; tail -2 $OUT/ar.txt; cp README.md docs/results.md $OUT/
killall_gpu
tar czf $OUT/results.tgz -C /tmp results
echo "== vdev $(left $L)"
timeout -s INT 50 python3 bench/winners.py moe-dispatch --tokens 16,1024 --hidden 7168 --experts 64 --top-k 8 --dtype bf16 --world-size 2 --budget 4s --db sqlite:////tmp/results/tuned.db --json $OUT/vdev.json > $OUT/vdev.txt 2>&1; tail -8 $OUT/vdev.txt
killall_gpu
echo "== outside $(left $L)"
timeout -s INT $(left $L) torchrun --standalone --nproc-per-node 2 bench/outside.py --only moe-dispatch --only moe-combine --only ar-28672 --db sqlite:////tmp/results/tuned.db --json $OUT/outside.json > $OUT/outside.txt 2>&1; tail -70 $OUT/outside.txt
killall_gpu
