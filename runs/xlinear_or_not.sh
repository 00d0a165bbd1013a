#!/usr/bin/env bash
# Does X-Linear attention help? The same features, captions, steps and seeds with and without it, scored on validation.
# Needs the features that runs/shipped_model.sh extracts. About half an hour on two cores; killed and started again, it continues.
set -euo pipefail
cd "$(dirname "$0")/.."
xlan=${XLAN:-xlan}
python=${PYTHON:-python}
data=${DATA:-data/coco-mini}
features=${FEATURES:-out/shipped/mini/features}
out=${OUT:-out/xlinear_or_not}

for seed in 1 2 3; do
  for kind in xlan base; do
    $xlan train "configs/coco-mini/compare_$kind.yaml" data.captions="$data/dataset.json" data.features="$features" \
      seed=$seed output="$out/$kind-$seed" --resume auto
  done
done
$python - "$out" <<'PY'
import json, statistics, sys
from pathlib import Path


def scores(run: Path) -> dict[str, float]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [line["scores"] for line in lines if line["kind"] == "evaluation"][-1]


for kind in ("xlan", "base"):
    runs = [scores(Path(sys.argv[1]) / f"{kind}-{seed}") for seed in (1, 2, 3)]
    for metric, scale, digits in (("loss", 1, 3), ("CIDEr", 100, 1), ("BLEU-4", 100, 1)):
        values = [scale * run[metric] for run in runs]
        each = ", ".join(f"{value:.{digits}f}" for value in values)
        mean, spread = statistics.mean(values), statistics.stdev(values)
        print(f"{kind:5} {metric:7} {mean:.{digits}f} ± {spread:.{digits}f}   ({each})")
PY
