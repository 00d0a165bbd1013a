#!/usr/bin/env bash
# The model that comes with xlan, from pictures to package.
#
# First a model of a fifth of COCO (MINI: dataset.json in Karpathy's format, its pictures in tar shards, boxes.json.gz of a machine;
# about three hours on two CPU cores), then, starting from its weights, one of all of COCO (DATA: dataset_coco.json or .json.xz,
# train2017/ with the pictures, boxes_silver.json.gz of a machine and boxes_true.json.gz of people; about eight hours more, on
# processors with bfloat16 products). It can be killed at any time and started again: every stage continues.
set -euo pipefail
cd "$(dirname "$0")/.."
xlan=${XLAN:-xlan}
python=${PYTHON:-python}
mini=${MINI:-data/coco-mini}
data=${DATA:-data/coco}
captions=${CAPTIONS:-$data/dataset_coco.json}
pictures=${PICTURES:-$data/train2017}
out=${OUT:-out/shipped}
mkdir -p "$out/mini"

# --- a fifth of COCO, 224 pixels ---
set_data=(data.captions="$mini/dataset.json" data.features="$out/mini/features")
$xlan adapt "$mini/dataset.json" -o "$out/mini/vision" --boxes "$mini/boxes.json.gz" --epochs 4
$xlan features extract "$mini/dataset.json" -o "$out/mini/features" --vision "$out/mini/vision/vision.safetensors"
$xlan train configs/coco-mini/xlan.yaml "${set_data[@]}" output="$out/mini/xe" --resume auto
# One of two epochs, then another with a higher rate: the first left the scores of the beam nearly where they were.
$xlan train configs/coco-mini/xlan_scst.yaml "${set_data[@]}" model.init="$out/mini/xe/best" output="$out/mini/scst" \
  train.max_steps=694 --resume auto
$xlan train configs/coco-mini/xlan_scst.yaml "${set_data[@]}" model.init="$out/mini/scst/best" output="$out/mini/scst2" \
  train.epochs=1 train.optimizer.lr=1.2e-4 --resume auto

# --- all of COCO, 256 pixels ---
set_data=(data.captions="$captions" data.features="$out/features")
$xlan adapt "$captions" --pictures "$pictures" -o "$out/vision" --input-size 224 --test-size 256 --words 1500 --epochs 0.5 \
  --precision bf16 --init "$out/mini/vision/vision.safetensors" \
  --boxes "$mini/boxes.json.gz" --boxes "$data/boxes_silver.json.gz" --boxes "$data/boxes_true.json.gz"
$xlan features extract "$captions" --pictures "$pictures" -o "$out/features" --vision "$out/vision/vision.safetensors" \
  --dtype int8 --precision bf16 --batch 32
# Three quarters of a pass, then a whole one with the same rates.
$xlan train configs/coco-grid/xlan.yaml "${set_data[@]}" model.init="$out/mini/scst2/best" output="$out/first" \
  train.max_steps=5057 --resume auto
$xlan train configs/coco-grid/xlan.yaml "${set_data[@]}" model.init="$out/first/last" model.new_words=false \
  model.new_features=false seed=2 output="$out/xe" --resume auto
$xlan train configs/coco-grid/xlan_scst.yaml "${set_data[@]}" model.init="$out/xe/last" seed=2 output="$out/scst" \
  --resume auto

# --- the same pictures at 288 pixels, on the same grid: what the network makes of them is better ---
$xlan features extract "$captions" --pictures "$pictures" -o "$out/features288" --vision "$out/vision/vision.safetensors" \
  --input-size 288 --cells 8 --dtype int8 --precision bf16 --batch 32
$xlan train configs/coco-grid/xlan_scst.yaml data.captions="$captions" data.features="$out/features288" \
  data.limit_train=null model.init="$out/scst/last" model.new_features=true train.optimizer.lr=6e-5 train.max_steps=5000 \
  seed=4 output="$out/larger" --resume auto
# Once more over half of them, twice, the rate back up. (The shipped model began here with its weights in 16 bits.)
$xlan train configs/coco-grid/xlan_scst.yaml data.captions="$captions" data.features="$out/features288" \
  data.limit_train=56662 train.epochs=2 model.init="$out/larger/last" train.optimizer.lr=6e-5 train.max_steps=6151 seed=5 \
  output="$out/longer" --resume auto

# The head that names words, taught again on these features: confidence, the order of captions and search ask it.
$python runs/word_head.py "$out/vision/words.safetensors" "$captions" "$out/features288" "$out/words.safetensors" \
  --limit 56662

# --- scores, card, confidence ---
for stage in xe scst larger longer; do
  features="$out/features"
  case $stage in larger | longer) features="$out/features288" ;; esac
  $xlan predict "$out/$stage/last" --captions "$captions" --features "$features" -o "$out/$stage.json" --skip-missing
  $xlan evaluate "$out/$stage.json" "$captions" --metrics bleu,meteor,rouge,cider,spice-spacy --subset --json \
    --per-image "$out/$stage.images.jsonl" >"$out/$stage.scores.json"
done
$xlan pack "$out/longer/last" --vision "$out/vision/vision.safetensors" --words "$out/words.safetensors" \
  --features "$out/features288" --captions "$captions" -o "$out/model" --force
$xlan confidence fit "$out/model" --captions "$captions" --features "$out/features288" --split val --odd 420
$xlan confidence check "$out/model" --captions "$captions" --features "$out/features288" --split test \
  -o "$out/reliability.html" --json >"$out/confidence.json"
$xlan predict "$out/model" --captions "$captions" --features "$out/features288" -o "$out/captions.json" --skip-missing --as-caption
$xlan evaluate "$out/captions.json" "$captions" --metrics bleu,meteor,rouge,cider,spice-spacy --subset --json \
  --per-image "$out/captions.images.jsonl" >"$out/captions.scores.json"
$python runs/shipped_card.py "$out" runs/mistakes.json runs/stages.json >"$out/card.md"
# The detector beside it, on the same vision network: 0.63 of a pass.
$xlan detector train configs/detector/coco.yaml output="$out/detector" dataset="$captions" pictures="$pictures" \
  boxes="[$mini/boxes.json.gz,$data/boxes_silver.json.gz,$data/boxes_true.json.gz]" true_boxes="$data/boxes_true.json.gz" \
  vision="$out/vision/vision.safetensors" precision=bf16 epochs=0.625
$xlan pack "$out/model" --vision "$out/vision/vision.safetensors" --detector "$out/detector/detector" --card "$out/card.md" \
  -o "$out/packed" --force
echo "to ship it: rm -rf src/xlan/models/default && cp -r $out/packed src/xlan/models/default"
