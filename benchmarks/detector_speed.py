"""Detectors: how much they add to their own convolutions, and their operators beside onnxruntime's.

    python benchmarks/detector_speed.py [--repeats 3] [--threads N] [--small]

1. Bottom-up attention at full size (ResNet-101, random weights) on one picture of 600 × 1000 pixels, 300 proposals,
   against its floor: the same convolutions and matrix products alone, each on an input of its shape, added up.
2. Suppression and pooling at the sizes they have there, against onnxruntime's NonMaxSuppression, MaxRoiPool and
   RoiAlign in the same process, with as many threads.
3. The small detector on one photo, from Pillow image to named boxes, and the memory of an extraction that gets longer.

Everything is interleaved and the best of the repeats counts, since whatever else a machine does only ever slows it
down. `--small` uses sizes that take seconds, to try the script.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from xlan.engines.load import EngineName, open_detector
from xlan.pretrained import DETECTOR, SHIPPED, VISION
from xlan.vision.detector.bottom_up import BottomUp, BottomUpSpec
from xlan.vision.detector.boxes import iou
from xlan.vision.detector.conventions import CAFFE
from xlan.vision.detector.detections import Detector
from xlan.vision.detector.extractor import BottomUpExtractor
from xlan.vision.detector.nms import kept_by_class, nms
from xlan.vision.detector.pooling import roi_align, roi_pool
from xlan.vision.detector.resnet import ResNetSpec
from xlan.vision.extract import extract_to_store
from xlan.vision.sources import find_pictures
from xlan.vision.store import FeatureStoreWriter

NETWORK_TARGET = 1.6  # times the floor
OPERATOR_TARGET = 2.0  # times onnxruntime
PHOTO_TARGET = 100.0  # milliseconds
SMALL = BottomUpSpec(ResNetSpec(8, (1, 1, 2, 1), 8, 32), rpn=16, classes=20, attributes=5)


def best(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each, in seconds, taken in turns."""
    times = {name: float("inf") for name in runs}
    for _ in range(repeats + 1):  # the first round warms up and counts like any other
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - began)
    return times


def recorded_layers(network: nn.Module, run: Callable[[], object]) -> list[tuple[nn.Module, Tensor]]:
    """Every convolution and matrix product of a run with an input of its shape."""
    calls: list[tuple[nn.Module, Tensor]] = []
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_pre_hook(lambda m, inputs: calls.append((m, inputs[0].shape))) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    made: dict[torch.Size, Tensor] = {}
    for _, shape in calls:
        if shape not in made:
            values = torch.randn(shape)
            made[shape] = values.to(memory_format=torch.channels_last) if values.ndim == 4 else values
    return [(layer, made[shape]) for layer, shape in calls]


def network_speed(repeats: int, small: bool) -> list[str]:
    spec = SMALL if small else BottomUpSpec()
    torch.manual_seed(0)
    network = BottomUp(spec, replace(CAFFE, short_side=96, long_side=160, proposals=40) if small else CAFFE)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    for name, module in network.named_modules():
        if name.endswith("conv3"):
            nn.init.normal_(module.weight, std=0.001)  # sums that do not grow from block to block
    nn.init.zeros_(network.rpn.deltas.weight)  # proposals that are anchors: as many as a real picture has
    extractor = BottomUpExtractor(network)
    side = (160, 96) if small else (1000, 600)
    pixels = np.random.default_rng(0).integers(0, 256, (side[1], side[0], 3), dtype=np.uint8)
    prepared = extractor.prepare(Image.fromarray(pixels))

    def whole() -> None:
        extractor.detect([prepared])

    with torch.inference_mode():
        layers = recorded_layers(extractor.network, whole)
        regions = sum(len(values) for layer, values in layers if layer is network.classes)

        def floor() -> None:
            for layer, values in layers:
                layer(values)

        times = best({"whole": whole, "floor": floor}, repeats)
    ratio = times["whole"] / times["floor"]
    return [
        f"bottom-up, {side[1]}×{side[0]}: {times['whole']:.2f} s a picture with {regions} proposals, "
        f"its convolutions alone {times['floor']:.2f} s: {ratio:.2f} times (at most {NETWORK_TARGET})"
    ]


def session(kind: str, inputs: tuple[str, ...], threads: int, **attributes: Any) -> Any:
    """One operator of onnxruntime."""
    import onnx
    import onnxruntime

    helper, types = onnx.helper, onnx.TensorProto
    values = [
        helper.make_tensor_value_info(name, types.INT64 if name in ("limit", "index") else types.FLOAT, None)
        for name in inputs
    ]
    result = types.INT64 if kind == "NonMaxSuppression" else types.FLOAT
    node = helper.make_node(kind, list(inputs), ["out"], **attributes)
    graph = helper.make_graph([node], "one", values, [helper.make_tensor_value_info("out", result, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def operator_speed(repeats: int, small: bool, threads: int) -> list[str]:
    random = np.random.default_rng(0)
    count, rois, classes, channels = (600, 30, 40, 32) if small else (6000, 300, 1600, 1024)
    # Proposals crowd around things: two hundred places, thirty boxes each.
    places = random.uniform(0, 600, (count // 30, 2))
    things = np.concatenate([places, places + random.uniform(32, 300, places.shape)], axis=1)
    boxes = torch.from_numpy(things.repeat(30, axis=0) + random.normal(0, 6, (count, 4))).float().clamp(min=0)
    boxes = boxes[torch.from_numpy(random.permutation(count))]
    scores = torch.from_numpy(random.random(count)).float()
    by_class = torch.from_numpy(random.random((rois, classes))).float()
    features = torch.from_numpy(random.random((1, channels, 38, 63), dtype=np.float32))
    rows = torch.cat([torch.zeros(rois, 1), boxes[:rois].clamp(max=990)], dim=1)

    suppress = session("NonMaxSuppression", ("boxes", "scores", "limit", "threshold"), threads)
    turned = boxes[:, [1, 0, 3, 2]].numpy()
    one = {"boxes": turned[None], "scores": scores[None, None].numpy(), "limit": np.array([300])}
    every = {"boxes": turned[None, :rois], "scores": by_class.t()[None].contiguous().numpy(), "limit": np.array([rois])}
    pool = session("MaxRoiPool", ("features", "rois"), threads, pooled_shape=(14, 14), spatial_scale=1 / 16)
    align = session(
        "RoiAlign",
        ("features", "rois", "index"),
        threads,
        output_height=14,
        output_width=14,
        sampling_ratio=2,
        spatial_scale=1 / 16,
        coordinate_transformation_mode="half_pixel",
    )
    maps = features.numpy()
    ours: dict[str, Callable[[], object]] = {
        f"suppression of {count:,} boxes to 300": lambda: nms(boxes, scores, 0.7, limit=300),
        f"suppression of {rois} boxes in {classes:,} classes": lambda: kept_by_class(
            iou(boxes[:rois], boxes[:rois]), by_class, 0.3
        ),
        f"RoIPool, {rois} regions": lambda: roi_pool(features, rows, 14, 1 / 16),
        f"RoIAlign, {rois} regions": lambda: roi_align(features, rows, 14, 1 / 16),
    }
    theirs: list[Callable[[], object]] = [
        lambda: suppress.run(None, {**one, "threshold": np.array([0.7], dtype=np.float32)}),
        lambda: suppress.run(None, {**every, "threshold": np.array([0.3], dtype=np.float32)}),
        lambda: pool.run(None, {"features": maps, "rois": rows.numpy()}),
        lambda: align.run(
            None, {"features": maps, "rois": rows[:, 1:].numpy(), "index": np.zeros(rois, dtype=np.int64)}
        ),
    ]
    lines = []
    with torch.inference_mode():
        for (name, mine), other in zip(ours.items(), theirs, strict=True):
            times = best({"ours": mine, "onnxruntime": other}, 10 * repeats)  # milliseconds: a few would be luck
            lines.append(
                f"{name}: {1e3 * times['ours']:.1f} ms, onnxruntime {1e3 * times['onnxruntime']:.1f} ms: "
                f"{times['ours'] / times['onnxruntime']:.2f} times (at most {OPERATOR_TARGET})"
            )
    return lines


def small_detector(engine: EngineName) -> Detector:
    return open_detector(SHIPPED / DETECTOR, engine=engine, vision=SHIPPED / VISION)


def photo_speed(repeats: int) -> list[str]:
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    photo = Image.fromarray(pixels)
    detectors = {"onnxruntime": small_detector("onnx"), "torch": small_detector("torch")}
    times = best(
        {name: lambda one=one: one.detect([one.prepare(photo)]) for name, one in detectors.items()},  # type: ignore[misc]
        5 * repeats,
    )
    shown = ", ".join(f"{1e3 * seconds:.0f} ms with {name}" for name, seconds in times.items())
    return [f"small detector, a photo of 640×480: {shown} (at most {PHOTO_TARGET:.0f})"]


def extraction_memory(small: bool) -> list[str]:
    """Peak memory after some pictures, and after three times as many."""
    count = 8 if small else 40
    extractor = small_detector("torch")
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        for number in range(3 * count):
            pixels = random.integers(0, 256, (240, 320, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(folder) / f"{number}.jpg")
        pictures = find_pictures([folder])
        for some in (pictures[:count], pictures):
            with FeatureStoreWriter(Path(folder) / "store", dtype="float16", extractor=extractor.description) as writer:
                report = extract_to_store(extractor, some, writer, batch=4)
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return [
        f"extraction: {report.images_per_second:.1f} pictures/s; peak memory {peaks[0]:.0f} MB after {count} pictures, "
        f"{peaks[1]:.0f} MB after {3 * count}"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--small", action="store_true", help="sizes that take seconds, to try the script")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} threads", file=sys.stderr)
    for lines in (
        operator_speed(arguments.repeats, arguments.small, arguments.threads),
        photo_speed(arguments.repeats),
        extraction_memory(arguments.small),
        network_speed(arguments.repeats, arguments.small),
    ):
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
