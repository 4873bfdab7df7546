"""The files to start from on a cluster: they parse, hold no secret, and name what exists."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from metta.cli.arguments import resolve_arguments
from metta.train.train_config import TrainingConfig

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
FILES = sorted(path.name for path in FOLDER.iterdir())


def manifests(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / name).read_text()))
    return found


def containers(name: str) -> Iterator[dict[str, Any]]:
    for manifest in manifests(name):
        pod = manifest["spec"].get("template", {}).get("spec", {})
        yield from pod.get("containers", [])


def words_of(name: str) -> list[str]:
    """What follows `metta train`, without options of the command."""
    if name.endswith(".sbatch"):
        lines = [line for line in (FOLDER / name).read_text().splitlines() if line[:1] != "#"]
        text = "\n".join(lines).replace("\\\n", " ")
    else:
        text = " ".join(shlex.join(one["args"]) for one in containers(name)).replace("'", "")
    words = shlex.split(text)
    begin = next(i for i, word in enumerate(words) if words[i : i + 2] == ["metta", "train"])
    return words[begin + 2 : words.index("--runs", begin)]


def config_of(name: str) -> TrainingConfig:
    return resolve_arguments(words_of(name)).config


def test_the_files_are_those_that_the_page_names() -> None:
    page = (FOLDER.parents[1] / "docs" / "scaling.md").read_text()
    assert sorted(set(re.findall(r"examples/cluster/([\w.]+)", page))) == FILES


def test_the_script_for_slurm_is_one_that_bash_reads() -> None:
    done = subprocess.run(["bash", "-n", FOLDER / "slurm.sbatch"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", FILES)
def test_every_setting_exists_and_fits_the_others(name: str) -> None:
    words = words_of(name)
    assert len([word for word in words if "=" in word]) >= 5
    config = config_of(name)
    assert config.env == "CartPole-v1"
    assert config.trainer.checkpoint.checkpoint_interval == 20


def test_shards_are_cut_into_as_many_parts_as_there_are_ranks_and_actors() -> None:
    text = (FOLDER / "slurm.sbatch").read_text()
    nodes, ranks = (
        int(re.findall(rf"^{key}=(\d+)$", text, re.M)[0]) for key in ("#SBATCH --nodes", "RANKS")
    )
    assert config_of("slurm.sbatch").trainer.rollout.num_shards % (nodes * ranks) == 0
    (job,) = [one for one in manifests("kubernetes.yaml") if one["kind"] == "Job"]
    pods = job["spec"]["completions"]
    (rank,) = containers("kubernetes.yaml")
    assert job["spec"]["parallelism"] == pods
    assert f"--nnodes={pods}" in rank["args"]
    assert config_of("kubernetes.yaml").trainer.rollout.num_shards % pods == 0
    collect = config_of("ray.yaml").trainer.collect
    (workers,) = [
        one for one in manifests("ray.yaml") if one["metadata"]["name"].endswith("workers")
    ]
    (worker,) = workers["spec"]["template"]["spec"]["containers"]
    (cpus,) = [int(arg.partition("=")[2]) for arg in worker["args"] if arg.startswith("--num-cpus")]
    assert collect.num_actors == workers["spec"]["replicas"] * cpus


def test_every_process_of_ray_has_the_token_and_no_file_has_it() -> None:
    found = list(containers("ray.yaml"))
    assert len(found) == 3
    for one in found:
        by_name = {variable["name"]: variable for variable in one["env"]}
        assert by_name["RAY_AUTH_MODE"]["value"] == "token"
        assert by_name["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {
            "name": "metta-ray",
            "key": "token",
        }
    kinds = {one["kind"] for name in FILES if name.endswith("yaml") for one in manifests(name)}
    assert "Secret" not in kinds
