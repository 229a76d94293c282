# An image with the command; without arguments it checks the machine that it runs on:
#
#   docker build -t iris-autotune .                       for a machine without a GPU: --build-arg TORCH_INDEX=URL, the CPU
#                                                         index that PyTorch's installation page names
#   docker run --rm --gpus all --ipc host iris-autotune   AMD: --device /dev/kfd --device /dev/dri for --gpus all
#   docker run --rm iris-autotune demo
#
# Results lie in /data: keep them with -v tuned:/data. Triton compiles its launchers with the C compiler.
FROM python:3.12-slim

RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX=""
WORKDIR /opt/iris-autotune
COPY . .
RUN PIP_EXTRA_INDEX_URL="$TORCH_INDEX" pip install --no-cache-dir -c constraints.txt .

WORKDIR /work
ENV AUTOTUNE_DB=/data/cache.db XDG_DATA_HOME=/data
VOLUME /data
ENTRYPOINT ["tune"]
CMD ["doctor"]
