#!/usr/bin/env bash
# A model of all of COCO, from pictures to package: vision → features → cross-entropy → self-critical → confidence.
# DATA has dataset_coco.json (or .json.xz), train2017/ with the pictures, boxes of machines (boxes.json.gz, boxes_silver.json.gz)
# and of people (boxes_true.json.gz). About ten hours on two CPU cores; killed at any time, it resumes when started again.
set -euo pipefail
cd "$(dirname "$0")/.."
xlan=${XLAN:-xlan}
data=${DATA:-data/coco}
captions=${CAPTIONS:-$data/dataset_coco.json}
pictures=${PICTURES:-$data/train2017}
out=${OUT:-out/coco}
mkdir -p "$out"
set_data=(data.captions="$captions" data.features="$out/features")

$xlan adapt "$captions" --pictures "$pictures" -o "$out/vision" --input-size 224 --test-size 256 --words 1500 --epochs 1 \
  --boxes "$data/boxes.json.gz" --boxes "$data/boxes_silver.json.gz" --boxes "$data/boxes_true.json.gz"
$xlan features extract "$captions" --pictures "$pictures" -o "$out/features" --vision "$out/vision/vision.safetensors"
$xlan train configs/coco-grid/xlan.yaml "${set_data[@]}" output="$out/xe" --resume auto
$xlan train configs/coco-grid/xlan_scst.yaml "${set_data[@]}" model.init="$out/xe/best" output="$out/scst" --resume auto

for stage in xe scst; do
  $xlan predict "$out/$stage/best" --captions "$captions" --features "$out/features" -o "$out/$stage.json" --skip-missing
  $xlan evaluate "$out/$stage.json" "$captions" --metrics bleu,meteor,rouge,cider --subset --json \
    --per-image "$out/$stage.images.jsonl" >"$out/$stage.scores.json"
done
$xlan pack "$out/scst/best" --vision "$out/vision/vision.safetensors" --words "$out/vision/words.safetensors" \
  --features "$out/features" --captions "$captions" -o "$out/model" --force
$xlan confidence fit "$out/model" --captions "$captions" --features "$out/features" --split val
$xlan confidence check "$out/model" --captions "$captions" --features "$out/features" --split test -o "$out/reliability.html"
