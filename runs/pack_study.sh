#!/usr/bin/env bash
# What the runs of a study said, small enough to keep: captions, logs and settings of every finished run, and the table.
#
#   runs/pack_study.sh STUDY                    writes runs/studies/STUDY.tar.xz from out/studies/STUDY
#   tar xf runs/studies/STUDY.tar.xz -C out/studies && xlan study configs/studies/STUDY.yaml --table
#
# The second line makes the table again, from people's captions in data/coco/dataset_coco.json.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
study=$1
cd "${OUT:-$root/out/studies}"
mkdir -p "$root/runs/studies"
files=("$study/table.md" "$study/table.json")
for said in "$study"/*/test.json; do
  run=$(dirname "$said")
  files+=("$run/test.json" "$run/log.jsonl" "$run/config.yaml")
done
# Sorted, without times and owners: the same results give the same file.
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - "${files[@]}" | xz -9e >"$root/runs/studies/$study.tar.xz.tmp"
mv "$root/runs/studies/$study.tar.xz.tmp" "$root/runs/studies/$study.tar.xz"
ls -l "$root/runs/studies/$study.tar.xz"
