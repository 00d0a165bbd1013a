"""The recipes for training on several machines: their syntax, their names and their options."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main
import yaml

from xlan.cli.main import app

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "examples" / "scale-out"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_slurm_script_is_bash() -> None:
    subprocess.run(["bash", "-n", str(RECIPES / "train.slurm")], check=True)


def test_the_kubernetes_objects_fit_together() -> None:
    service, job = yaml.safe_load_all((RECIPES / "train.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert f"--nnodes={job['spec']['parallelism']}" in container["command"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


@pytest.mark.parametrize("name", ["train.slurm", "train.yaml"])
def test_their_options_of_xlan_and_torchrun_exist(name: str) -> None:
    from torch.distributed.run import get_args_parser

    text = (RECIPES / name).read_text()
    known = {option for action in get_args_parser()._actions for option in action.option_strings}
    known |= {option for parameter in typer.main.get_command(app).commands["train"].params for option in parameter.opts}  # type: ignore[attr-defined]
    command = text[text.index("torchrun", text.index("srun" if name.endswith("slurm") else "command:")) :]
    used = set(re.findall(r"(?<=[ \"])--[a-z-]+", command.split("resources:")[0]))
    assert used
    assert used <= known
