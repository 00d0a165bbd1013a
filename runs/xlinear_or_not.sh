#!/usr/bin/env bash
# Does X-Linear attention help? The same features, captions, steps and seeds with and without it; scores on the test split.
# Needs the features that runs/shipped_model.sh extracts. About half an hour on two cores; killed, it goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
xlan=${XLAN:-xlan}
python=${PYTHON:-python}
data=${DATA:-data/coco-mini}
features=${FEATURES:-out/shipped/features}
out=${OUT:-out/xlinear_or_not}

for seed in 1 2 3; do
  for kind in xlan base; do
    run="$out/$kind-$seed"
    $xlan train "configs/coco-mini/compare_$kind.yaml" data.captions="$data/dataset.json" data.features="$features" \
      seed=$seed output="$run" --resume auto
    $xlan predict "$run/best" --captions "$data/dataset.json" --features "$features" -o "$run/test.json"
    $xlan evaluate "$run/test.json" "$data/dataset.json" --metrics bleu,cider --json >"$run/scores.json"
  done
done
$python - "$out" <<'PY'
import json, statistics, sys
from pathlib import Path

for kind in ("xlan", "base"):
    runs = [json.loads((Path(sys.argv[1]) / f"{kind}-{seed}" / "scores.json").read_text()) for seed in (1, 2, 3)]
    for metric in ("CIDEr", "BLEU-4"):
        values = [100 * run[metric] for run in runs]
        each = ", ".join(f"{value:.1f}" for value in values)
        print(f"{kind:5} {metric:7} {statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}   ({each})")
PY
