"""Models as ONNX graphs: written from the numbers of a spec and plain arrays, without torch and without `onnx`."""
