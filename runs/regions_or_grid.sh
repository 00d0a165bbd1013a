#!/usr/bin/env bash
# Do detected regions help? X-LAN on grid cells, on detected regions and on both, from one pass of one network, with two seeds.
# Needs a fifth of COCO (DATA: dataset.json in Karpathy's format, its pictures in tar shards) and processors with bfloat16
# products. About an hour on two cores; killed and started again, it continues.
set -euo pipefail
cd "$(dirname "$0")/.."
xlan=${XLAN:-xlan}
python=${PYTHON:-python}
data=${DATA:-data/coco-mini}
model=${MODEL:-src/xlan/models/default}
out=out/regions

$xlan features extract "$data/dataset.json" -o "$out/both" --detector "$model/detector" --vision "$model/vision.safetensors" \
  --grid --dtype int8 --precision bf16
$python runs/split_regions.py "$out/both" "$out/grid" "$out/regions"
$xlan study configs/studies/regions.yaml
