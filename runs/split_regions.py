"""A store of whole picture, detections and grid cells → one without the cells, and one without the detections.

python runs/split_regions.py BOTH GRID REGIONS
"""

from __future__ import annotations

import sys
from dataclasses import replace

from xlan.vision.store import FeatureStore, FeatureStoreWriter


def main() -> None:
    """Both stores are continued where they exist."""
    both, grid, regions = sys.argv[1:]
    store = FeatureStore(both)
    cells = (-(-store.extractor["input_size"] // 32)) ** 2
    for path, kept in ((grid, "cells"), (regions, "detections")):
        about = {**store.extractor, "kept": kept}
        with FeatureStoreWriter(path, dtype=store.dtype, extractor=about) as writer:
            for name in store.ids:
                if name in writer:
                    continue
                found = store[name]
                first = len(found) - cells
                index = [0, *range(first, len(found))] if kept == "cells" else list(range(first))
                scores = None if found.scores is None else found.scores[index]
                writer.add(
                    name, replace(found, features=found.features[index], boxes=found.boxes[index], scores=scores)
                )


if __name__ == "__main__":
    main()
