"""The recipes for Slurm and Kubernetes, as far as they can be checked without either."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"

# The fields that the recipes use, with what each is: a type, fields of its own, or a list of such.
# From Kubernetes' API reference, core/v1: Container, PodSpec, EnvVar, VolumeMount, Volume.
ENV = [{"name": str, "value": str}]
MOUNTS = [{"name": str, "mountPath": str}]
LIMITS = {"limits": {"nvidia.com/gpu": int}}
VOLUMES = [
    {
        "name": str,
        "persistentVolumeClaim": {"claimName": str},
        "emptyDir": {"medium": str, "sizeLimit": str},
    }
]
# kubeflow/training-operator, pkg/apis/kubeflow.org/v1/pytorch_types.go and common_types.go
CONTAINER = {"name": str, "image": str, "workingDir": str, "command": [str], "args": [str]}
CONTAINER |= {"env": ENV, "resources": LIMITS, "volumeMounts": MOUNTS}
POD = {"spec": {"containers": [CONTAINER], "volumes": VOLUMES}}
PYTORCHJOB = {
    "nprocPerNode": str,
    "elasticPolicy": {"rdzvBackend": str, **dict.fromkeys(["minReplicas", "maxReplicas"], int)},
    "pytorchReplicaSpecs": {"Worker": {"replicas": int, "restartPolicy": str, "template": POD}},
}
PYTORCHJOB["elasticPolicy"]["maxRestarts"] = int
# kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go, as of 2.2: TrainJobSpec, Trainer,
# RuntimePatch and down to ContainerPatch, which knows mounts but no image
PATCHED = {"containers": [{"name": str, "volumeMounts": MOUNTS}], "volumes": VOLUMES}
JOBS = [{"name": str, "template": {"spec": {"template": {"spec": PATCHED}}}}]
TRAINJOB = {
    "runtimeRef": {"name": str},
    "trainer": {"image": str, "numNodes": int, "numProcPerNode": int, "resourcesPerNode": LIMITS}
    | {"command": [str], "args": [str], "env": ENV},
    "runtimePatches": [
        {"manager": str, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": JOBS}}}}
    ],
}
KINDS = {
    "pytorchjob.yaml": ("kubeflow.org/v1", "PyTorchJob", PYTORCHJOB),
    "trainjob.yaml": ("trainer.kubeflow.org/v1alpha1", "TrainJob", TRAINJOB),
}


def wrong(value: Any, schema: Any, where: str) -> Iterator[str]:
    """What does not fit: a field that the schema does not know, or a value of another type."""
    if isinstance(schema, type):
        if type(value) is not schema:
            yield f"{where}: {schema.__name__}, got {value!r}"
    elif isinstance(schema, list):
        for index, each in enumerate(value if isinstance(value, list) else [None]):
            yield from wrong(each, schema[0], f"{where}[{index}]")
    elif not isinstance(value, dict):
        yield f"{where}: fields, got {value!r}"
    else:
        for name, each in value.items():
            if name in schema:
                yield from wrong(each, schema[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}: unknown"


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((SCRIPTS / name).read_text())


@pytest.mark.parametrize("name", KINDS)
def test_fields_are_those_of_the_resource(name: str) -> None:
    version, kind, schema = KINDS[name]
    whole = {"apiVersion": str, "kind": str, "metadata": {"name": str}, "spec": schema}
    assert list(wrong(read(name), whole, name)) == []
    assert (read(name)["apiVersion"], read(name)["kind"]) == (version, kind)


def test_a_field_that_does_not_exist_is_seen() -> None:
    recipe = read("trainjob.yaml")
    recipe["spec"]["trainer"] |= {"numNode": 2, "numNodes": "2"}
    found = list(wrong(recipe["spec"], TRAINJOB, "spec"))
    assert found == ["spec.trainer.numNodes: int, got '2'", "spec.trainer.numNode: unknown"]


def commands() -> dict[str, list[str]]:
    """What each recipe starts: the words after torchrun."""
    container = read("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    (container,) = container["spec"]["containers"]
    trainer = read("trainjob.yaml")["spec"]["trainer"]
    shell = (SCRIPTS / "slurm.sh").read_text().replace("\\\n", " ")
    (line,) = (line for line in shell.splitlines() if line.startswith("srun"))
    words = shlex.split(line.split("&")[0])
    found = {
        "pytorchjob.yaml": container["command"] + container["args"],
        "trainjob.yaml": trainer["command"] + trainer["args"],
        "slurm.sh": words[words.index("torchrun") :],
    }
    assert {command[0] for command in found.values()} == {"torchrun"}
    return {name: command[1:] for name, command in found.items()}


@pytest.mark.parametrize("name", ["pytorchjob.yaml", "trainjob.yaml", "slurm.sh"])
def test_torchrun_and_the_script_take_these_flags(name: str) -> None:
    command = commands()[name]
    torchrun = get_args_parser().parse_args(command)  # exits at a flag that it does not know
    script = ROOT / torchrun.training_script.removeprefix("/workspace/")
    assert script.is_file()
    flags = {word for word in torchrun.training_script_args if word.startswith("--")}
    source = script.read_text()
    assert flags
    assert all(f'add_argument("{flag}"' in source for flag in flags)
    if name == "slurm.sh":
        assert torchrun.rdzv_backend == "c10d"


def test_the_shell_accepts_the_batch_script() -> None:
    shellcheck = str(Path(sys.executable).with_name("shellcheck"))
    for checker in (["bash", "-n"], [shellcheck]):
        done = subprocess.run([*checker, SCRIPTS / "slurm.sh"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
