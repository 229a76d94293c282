. .whl/setup.sh
nvidia-smi --query-gpu=name,driver_version --format=csv
( timeout -s INT 165 python3 -m pytest -m gpu -p no:benchmark -p no:cacheprovider -q -rf -n 8 --dist worksteal -k "not (two ranks or many_sequences)" $(cat .whl/ids_a.txt) ) > $OUT/tests.txt 2>&1
tail -15 $OUT/tests.txt
killall_gpu; sleep 1
echo "== moe $(left 600)"
timeout -s INT 330 python3 bench/results.py --only moe-dispatch --only moe-combine --folder /tmp/results > $OUT/moe.txt 2>&1
tail -5 $OUT/moe.txt
cp README.md docs/results.md $OUT/ 2>/dev/null
tar czf $OUT/results.tgz -C /tmp results
killall_gpu
echo "== routings $(left 600)"
for t in dispatch combine; do python3 -c "import json;f=json.load(open('/tmp/results/moe-$t.1.json'))['found'];json.dump(f if isinstance(f,list) else f['rows'],open('/tmp/$t.json','w'))"; timeout -s INT $(( $(left 580) / 2 + 10 )) python3 bench/routings.py /tmp/$t.json > $OUT/routings-$t.txt 2>&1; tail -22 $OUT/routings-$t.txt; done
killall_gpu
