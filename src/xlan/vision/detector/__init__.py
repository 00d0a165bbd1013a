"""Two-stage detectors: pictures → boxes with names and features.

boxes, nms, pooling            the operators, in plain torch, each beside a slow and obvious version
anchors, suppression           the parts of them that need no torch
conventions                    what the public implementations of bottom-up attention differ in, as values
resize, resnet, bottom_up      the network of the paper's features: preprocessing, ResNet-101, proposals, heads
selection                      which proposals become regions: 10 to 100, or a fixed number
weights, directory             public weight files → a detector directory, and back into memory
lite, lite_settings            a small detector of our own on EfficientNet-Lite; `xlan.detector_training` trains it
extractor, lite_extractor      either of them behind the interface that captioning uses
"""
