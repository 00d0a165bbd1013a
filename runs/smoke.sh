#!/usr/bin/env bash
# All stages of training on drawn shapes, about a minute on two cores: cross-entropy, self-critical, two report pages.
# Fails unless CIDEr on held-out pictures is above 1.0 and self-critical training raised it.
set -euo pipefail
cd "$(dirname "$0")/.."
xlan=${XLAN:-xlan}
# The model is tiny: more threads would only wait for one another.
export OMP_NUM_THREADS=1
rm -rf out/smoke

$xlan train configs/smoke.yaml
$xlan train configs/smoke_scst.yaml
$xlan report out/smoke/xe
$xlan report out/smoke/scst

best() { grep -ho '"best": [0-9][0-9.]*' "$1"/checkpoints/*/state.json | tail -n 1 | grep -o '[0-9.]*$'; }
xe=$(best out/smoke/xe)
scst=$(best out/smoke/scst)
echo "CIDEr on held-out pictures: cross-entropy $xe, self-critical $scst"
awk -v a="$xe" -v b="$scst" 'BEGIN { exit !(a > 1.0 && b > a) }' || { echo "expected more than 1.0, then a rise" >&2; exit 1; }
