begin=$(date +%s)
if [ ! -d /tmp/site/optuna ]; then python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl; fi
export PYTHONPATH=/tmp/site:$PWD XDG_CACHE_HOME=/tmp/cache PYTHONUNBUFFERED=1
left() { echo $(( $1 - ($(date +%s) - begin) )); }
killall_gpu() { for p in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader); do kill -9 $p 2>/dev/null; done; }
