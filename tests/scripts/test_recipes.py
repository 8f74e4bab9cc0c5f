"""The recipes for Slurm and Kubernetes, as far as they can be checked without either."""

import os
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
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
LIMITS = {"limits": {"nvidia.com/gpu": int, "rdma/rdma_shared_device_a": int}}
SECURITY = {"capabilities": {"add": [str]}}
VOLUMES = [
    {
        "name": str,
        "persistentVolumeClaim": {"claimName": str},
        "emptyDir": {"medium": str, "sizeLimit": str},
    }
]
# kubeflow/training-operator, pkg/apis/kubeflow.org/v1/pytorch_types.go and common_types.go
CONTAINER = {"name": str, "image": str, "workingDir": str, "command": [str], "args": [str]}
CONTAINER |= {"env": ENV, "resources": LIMITS, "volumeMounts": MOUNTS, "securityContext": SECURITY}
POD = {"spec": {"containers": [CONTAINER], "volumes": VOLUMES}}
POD["spec"]["terminationGracePeriodSeconds"] = int
PYTORCHJOB = {
    "nprocPerNode": str,
    "elasticPolicy": {"rdzvBackend": str, **dict.fromkeys(["minReplicas", "maxReplicas"], int)},
    "pytorchReplicaSpecs": {"Worker": {"replicas": int, "restartPolicy": str, "template": POD}},
}
PYTORCHJOB["elasticPolicy"]["maxRestarts"] = int
# kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go, as of 2.3: TrainJobSpec, Trainer,
# RuntimePatch and down to ContainerPatch, which knows mounts but no image
PATCHED = {"containers": [{"name": str, "volumeMounts": MOUNTS, "securityContext": SECURITY}]}
PATCHED |= {"volumes": VOLUMES, "terminationGracePeriodSeconds": int}
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


def test_fields_are_those_of_the_resource() -> None:
    for name, (version, kind, schema) in KINDS.items():
        recipe = read(name)
        whole = {"apiVersion": str, "kind": str, "metadata": {"name": str}, "spec": schema}
        assert list(wrong(recipe, whole, name)) == []
        assert (recipe["apiVersion"], recipe["kind"]) == (version, kind)


def test_a_field_that_does_not_exist_is_seen() -> None:
    recipe = read("trainjob.yaml")
    recipe["spec"]["trainer"] |= {"numNode": 2, "numNodes": "2"}
    found = list(wrong(recipe["spec"], TRAINJOB, "spec"))
    assert found == ["spec.trainer.numNodes: int, got '2'", "spec.trainer.numNode: unknown"]


def words(text: str) -> list[list[str]]:
    """The commands of a shell script, each in its words."""
    lines = text.replace("\\\n", " ").splitlines()
    return [split for line in lines if (split := shlex.split(line, comments=True))]


def started() -> dict[str, tuple[list[str], dict[str, str]]]:
    """What each recipe starts, the words after torchrun, and what it exports."""
    container = read("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    (container,) = container["spec"]["containers"]
    trainer = read("trainjob.yaml")["spec"]["trainer"]
    shell = words((SCRIPTS / "slurm.sh").read_text())
    (srun,) = (command for command in shell if command[0] == "srun" and "torchrun" in command)
    exported = [
        word.split("=", 1) for command in shell if command[0] == "export" for word in command
    ]
    found = {
        "pytorchjob.yaml": (container["command"] + container["args"], container["env"]),
        "trainjob.yaml": (trainer["command"] + trainer["args"], trainer["env"]),
        "slurm.sh": (srun[srun.index("torchrun") : srun.index("&")], []),
    }
    assert {command[0] for command, _ in found.values()} == {"torchrun"}
    given = {name: {e["name"]: e["value"] for e in env} for name, (_, env) in found.items()}
    given["slurm.sh"] = {word[0]: word[1] for word in exported if len(word) == 2}
    return {name: (command[1:], given[name]) for name, (command, _) in found.items()}


def test_torchrun_and_the_script_take_a_recipe_s_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")  # two nodes of eight GPUs, as all of them say
    for name, (command, environment) in started().items():
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            torchrun = get_args_parser().parse_args(
                command
            )  # exits at a flag that it does not know
            script = ROOT / torchrun.training_script.removeprefix("/workspace/")
            assert script.is_file(), name
            patch.setattr(sys, "argv", [str(script), *torchrun.training_script_args])
            taken = runpy.run_path(str(script))["flags"]()
        assert (taken.steps, taken.batch) == (100_000, 1024), name
        if name != "pytorchjob.yaml":  # whose operator says so from the elasticPolicy
            assert (torchrun.rdzv_backend, torchrun.max_restarts) == ("c10d", 3), name
            assert torchrun.rdzv_id, name
            assert torchrun.rdzv_endpoint, name
        assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1", "a new store to restart"
        assert environment["NCCL_DEBUG"] == "INFO", "the log shows the network"
        assert environment["TORCH_FR_DUMP_TEMP_FILE"], "whoever hangs can be found"
        assert torchrun.log_dir, name
        assert torchrun.tee == "3", f"{name}: whose line it is"
        if name == "slurm.sh":
            assert "SIGUSR1" in environment["PET_SIGNALS_TO_HANDLE"].split(",")


def test_recipes_of_kubernetes_ask_for_the_network_s_cards() -> None:
    elastic = read("pytorchjob.yaml")["spec"]
    assert elastic["elasticPolicy"]["rdzvBackend"] == "c10d"
    pod = elastic["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    trainer = read("trainjob.yaml")["spec"]["trainer"]
    for resources in (pod["containers"][0]["resources"], trainer["resourcesPerNode"]):
        assert resources["limits"]["rdma/rdma_shared_device_a"] == 1
    patch = read("trainjob.yaml")["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]
    (job,) = patch["template"]["spec"]["replicatedJobs"]
    patched = job["template"]["spec"]["template"]["spec"]
    for env, grace in ((pod["containers"][0]["env"], pod), (trainer["env"], patched)):
        (patience,) = (e["value"] for e in env if "SHUTDOWN" in e["name"])
        assert int(patience) < grace["terminationGracePeriodSeconds"], "ranks end before the pod"


SLURM = """#!/bin/bash
# Stands in for Slurm's commands: srun starts its task and hands on its signals.
case $0 in
*scontrol) [ "$1" = requeue ] && echo "requeued $2" || echo localhost ;;
*nvidia-smi) echo 0; echo "${BAD_GPU:-0}" ;;
*srun) trap 'kill -USR1 $!' USR1
    [ "$1" = bash ] && exec "$@"
    while [ "$1" != torchrun ]; do shift; done
    "$@" &
    wait $! || wait $! ;;
*torchrun) trap 'echo saved; exit 1' USR1; echo "started $*"
    [ "${FAILS:-}" ] && exit 1
    for _ in {1..200}; do sleep 0.1; done ;;
esac
"""


@pytest.fixture
def batch(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    for name in ("srun", "scontrol", "nvidia-smi", "torchrun"):
        (tmp_path / name).write_text(SLURM)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    given = {"SLURM_SUBMIT_DIR": tmp_path, "SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "x"}
    given |= {"SLURM_CPUS_PER_TASK": 64, "SLURM_GPUS_ON_NODE": 8, "SLURM_JOB_NUM_NODES": 2}
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(**more: object) -> subprocess.Popen[str]:
        env = environment | {key: str(value) for key, value in (given | more).items()}
        command = ["bash", SCRIPTS / "slurm.sh"]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    return run


def test_the_batch_script_lets_the_ranks_save_and_queues_again(batch: Any) -> None:
    with batch() as job:
        assert "--rdzv-endpoint localhost:20007" in job.stdout.readline()
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.read() == "saved\nrequeued 7\n"


def test_the_batch_script_queues_a_failed_job_again_but_not_for_ever(batch: Any) -> None:
    for restarts, ends in ((0, ["requeued 7"]), (20, [])):
        with batch(FAILS=1, SLURM_RESTART_COUNT=restarts) as job:
            assert job.stdout.read().splitlines()[1:] == ends
        assert job.returncode == 1


def test_the_batch_script_names_the_node_of_a_bad_gpu(batch: Any) -> None:
    with batch(BAD_GPU=3) as job:
        named, advice = job.stdout.read().splitlines()
    assert named.endswith(": 3")
    assert "--exclude" in advice
    assert job.returncode == 1


def test_the_shell_accepts_the_batch_script() -> None:
    shellcheck = str(Path(sys.executable).with_name("shellcheck"))
    for checker in (["bash", "-n"], [shellcheck]):
        done = subprocess.run([*checker, SCRIPTS / "slurm.sh"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
