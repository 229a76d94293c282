. .whl/setup.sh
[ -d /tmp/results ] || tar xzf .whl/results.tgz -C /tmp
nvidia-smi --query-gpu=name --format=csv,noheader
timeout -s INT 190 python3 -m pytest -m gpu -p no:benchmark -p no:cacheprovider -q -rf -n 10 --dist loadscope @.whl/ids_b.txt > $OUT/tests.txt 2>&1
tail -15 $OUT/tests.txt
killall_gpu; sleep 1
echo "== rep"
timeout -s INT 185 python3 bench/results.py --only repeatability --folder /tmp/results > $OUT/rep.txt 2>&1; tail -3 $OUT/rep.txt
tar czf $OUT/results.tgz -C /tmp results
killall_gpu
echo "== proofs $(left 600)"
timeout -s INT 80 torchrun --standalone --nproc-per-node 2 .whl/gpu_shard_copy.py > $OUT/shard_copy.txt 2>&1; tail -40 $OUT/shard_copy.txt
killall_gpu
timeout -s INT 60 torchrun --standalone --nproc-per-node 2 .whl/gpu_transports.py > $OUT/transports.txt 2>&1; tail -40 $OUT/transports.txt
killall_gpu
