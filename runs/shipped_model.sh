#!/usr/bin/env bash
# The model that comes with xlan, from pictures to package: vision → features → cross-entropy → self-critical → scores.
# DATA has dataset.json (Karpathy's format, a fifth of COCO), its pictures in tar shards and boxes.json.gz.
# About three hours on two CPU cores. It can be killed at any time and started again: every stage continues.
set -euo pipefail
cd "$(dirname "$0")/.."
xlan=${XLAN:-xlan}
python=${PYTHON:-python}
data=${DATA:-data/coco-mini}
out=${OUT:-out/shipped}
mkdir -p "$out"
set_data=(data.captions="$data/dataset.json" data.features="$out/features")

$xlan adapt "$data/dataset.json" -o "$out/vision" --boxes "$data/boxes.json.gz" --epochs 4
$xlan features extract "$data/dataset.json" -o "$out/features" --vision "$out/vision/vision.safetensors"
$xlan train configs/coco-mini/xlan.yaml "${set_data[@]}" output="$out/xe" --resume auto
# One of two epochs, then another with a higher rate: the first left the scores of the beam nearly where they were.
$xlan train configs/coco-mini/xlan_scst.yaml "${set_data[@]}" model.init="$out/xe/best" output="$out/scst" \
  train.max_steps=694 --resume auto
$xlan train configs/coco-mini/xlan_scst.yaml "${set_data[@]}" model.init="$out/scst/best" output="$out/scst2" \
  train.epochs=1 train.optimizer.lr=1.2e-4 --resume auto

for stage in xe scst scst2; do
  $xlan predict "$out/$stage/best" --captions "$data/dataset.json" --features "$out/features" -o "$out/$stage.json"
  $xlan evaluate "$out/$stage.json" "$data/dataset.json" --metrics bleu,meteor,rouge,cider --json \
    --per-image "$out/$stage.images.jsonl" >"$out/$stage.scores.json"
done
$python runs/shipped_card.py "$out" >"$out/card.md"
$xlan pack "$out/scst2/best" --vision "$out/vision/vision.safetensors" --card "$out/card.md" -o "$out/model" --force \
  --features "$out/features" --captions "$data/dataset.json"
echo "to ship it: rm -rf src/xlan/models/default && cp -r $out/model src/xlan/models/default"
