"""The configuration of a training run: one YAML file, checked by typed models before anything is built.

`schema` has the sections with every key, its type, range and default; `load` reads, overrides and saves them;
`explain` turns a failed check into one line in the user's own words. Only the file that builds a run and the command
line read this package; classes elsewhere take plain values.
"""

from xlan.config.detector import DetectorConfig
from xlan.config.load import changed_keys, dump_config, load_config, load_detector_config, parse_config, save_config
from xlan.config.schema import ModelConfig, NoamConfig, RunConfig, TrainConfig

__all__ = [
    "DetectorConfig",
    "ModelConfig",
    "NoamConfig",
    "RunConfig",
    "TrainConfig",
    "changed_keys",
    "dump_config",
    "load_config",
    "load_detector_config",
    "parse_config",
    "save_config",
]
