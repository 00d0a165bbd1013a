#!/usr/bin/env bash
# The paper's X-LAN from files to score: features → cross-entropy → self-critical → test split.
# Expects Karpathy's dataset_coco.json and the bottom-up features (the 10-100 regions TSV, or a folder of npz) in data/coco.
# One GPU does; give GPUS=4 for four. Every stage can be killed and the script started again: it continues.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${MODEL:-xlan} # or xtransformer, transformer
gpus=${GPUS:-1}
bottom_up=${BOTTOM_UP:-data/coco/bottom_up}
train() { torchrun --standalone --nproc-per-node "$gpus" -m xlan train "$@" --resume auto; }

xlan features import "$bottom_up" -o data/coco/features
train "configs/coco/$model.yaml"
train "configs/coco/${model}_scst.yaml"
xlan report "out/coco/$model"
xlan report "out/coco/${model}_scst"
xlan predict "out/coco/${model}_scst/best" --captions data/coco/dataset_coco.json --features data/coco/features \
  --split test -o "out/coco/${model}_scst/test.json"
xlan evaluate "out/coco/${model}_scst/test.json" data/coco/dataset_coco.json
