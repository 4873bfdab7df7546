"""Every setting of a training run: its name, its unit, its range, and its only default.

Configurations are frozen, validated when they are built, and load without torch.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import BeforeValidator, model_validator

from metta.train.parsing.fields import (
    Count,
    Decay,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Whole,
    config_class,
)
from metta.train.parsing.problems import raise_broken
from metta.train.parsing.values import plain_data
from metta.train.rules import collect_rules, group_rules, shard_rules
from metta.train.run_config import (
    CheckpointConfig,
    CollectConfig,
    CurriculumConfig,
    EvaluationConfig,
    LoggingConfig,
    SelfPlayConfig,
    WandbConfig,
)

if TYPE_CHECKING:
    from metta.train.presets import PRESETS as PRESETS
    from metta.train.presets import large_distributed_config as large_distributed_config
    from metta.train.presets import medium_config as medium_config
    from metta.train.presets import small_fast_config as small_fast_config

__all__ = [
    "AgentConfig",
    "CheckpointConfig",
    "CollectConfig",
    "CurriculumConfig",
    "EvaluationConfig",
    "LoggingConfig",
    "NumericsConfig",
    "OptimizerConfig",
    "PPOConfig",
    "RolloutConfig",
    "SystemConfig",
    "TrainerConfig",
    "TrainingConfig",
    "WandbConfig",
]


@config_class
class PPOConfig:
    """The learning rule."""

    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Weight of longer returns in the advantage; 0 is one step, 1 is the whole episode."""
    clip_coef: Positive = 0.2
    """Half-width of the ratio clip."""
    vf_clip_coef: Positive | None = None
    """Half-width of the value clip, in units of the value scale; None: no value clip."""
    vf_coef: NonNegative = 0.5
    """Weight of the value loss."""
    ent_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    update_epochs: Count = 4
    """Passes over each rollout."""
    num_minibatches: Count = 4
    """Minibatches per pass; sizes differ by at most one sample."""
    minibatch_size: Count | None = None
    """Samples per minibatch; must divide the batch. Replaces `num_minibatches`."""
    gradient_accumulation: Count = 1
    """Pieces in which a minibatch is computed to save memory; the step is the same."""
    max_grad_norm: Positive | None = 0.5
    """Global gradient norm above which gradients are scaled down; None: never."""
    normalize_advantages: bool = True
    """Shift and scale advantages to mean 0, deviation 1 in each minibatch; V-trace's are scaled only."""
    target_kl: Positive | None = None
    """Stop the update before a step whose minibatch KL is above this; None: never."""
    advantage_estimator: Literal["gae", "vtrace"] = "gae"
    """`vtrace` corrects advantages of rollouts that an older policy collected."""
    vtrace_rho_clip: Positive = 1.0
    """Largest importance weight of a temporal difference (V-trace only)."""
    vtrace_c_clip: Positive = 1.0
    """Largest importance weight of a trace (V-trace only)."""
    clip_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `clip_coef` changes over the run; anything but constant ends at `schedule_end`."""
    ent_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `ent_coef` changes over the run; anything but constant ends at `schedule_end`."""
    schedule_end: Fraction = 0.0
    """Share of the first value that schedules of clip and entropy reach at the end of the run."""
    max_nonfinite_steps: Count = 8
    """Optimizer steps in a row that may be skipped for NaN or infinity before training stops."""


@config_class
class OptimizerConfig:
    """How gradients become steps."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    """Adam and AdamW run on one flat vector of all parameters."""
    learning_rate: Positive = 2.5e-4
    """Step size at the start of the run."""
    schedule: Literal["constant", "linear", "cosine", "adaptive_kl"] = "constant"
    """`adaptive_kl` moves the step size to keep the KL of an update near `desired_kl`, from 1e-6 up to 2.25
    times the learning rate."""
    schedule_end: Fraction = 0.0
    """Share of the first value that a linear or cosine schedule reaches at the end of the run."""
    desired_kl: Positive = 0.01
    """KL per update that `adaptive_kl` aims for."""
    beta1: Decay = 0.9
    """Decay of Adam's first moment."""
    beta2: Decay = 0.999
    """Decay of Adam's second moment."""
    eps: Positive = 1e-5
    """Adam's smallest denominator."""
    weight_decay: NonNegative = 0.0
    """Decoupled for `adamw`, added to the gradient for `adam` and `sgd`."""
    momentum: Decay = 0.0
    """For `sgd`."""


@config_class
class RolloutConfig:
    """How experience is collected."""

    horizon: Count = 128
    """Steps per environment and rollout (T)."""
    num_envs: Count = 8
    """Environments (N), if metta makes them."""
    num_workers: Whole = 0
    """Processes that step environments; 0: this process."""
    num_groups: Count = 1
    """Groups that step in turn; 2 overlaps acting with stepping (double buffering)."""
    bptt_horizon: Count = 16
    """Steps through which gradients of recurrent policies flow; must divide the horizon."""
    step_timeout_seconds: Positive = 60.0
    """Time after which a worker that does not answer counts as hung."""
    start_timeout_seconds: Positive = 300.0
    """The same for making and resetting environments, which may take longer."""
    max_worker_restarts: Whole = 3
    """How often within any hour workers that died or hung are started again; 0: never."""
    on_env_error: Literal["fail", "restart"] = "fail"
    """Whether an exception in an environment ends the run, or counts as a crash of its worker."""
    num_shards: Count = 1
    """Equal parts of the environments, each collected from and learned from by one process. A run's numbers
    depend on this setting, and not on the number of processes."""
    auto_batch: bool = False
    """Choose `num_envs`, `horizon` and `minibatch_size` for this machine, except those that were set."""


@config_class
class NumericsConfig:
    """Settings that affect only the last bits of the numbers; resolved once per run."""

    threads: Whole = 0
    """Threads of torch; 0: one for small networks, all cores for large ones."""
    actor: Literal["auto", "eager", "traced", "numpy", "c"] = "auto"
    """How actions are drawn from the policy; `auto` takes the fastest that agrees with it."""
    driver: Literal["auto", "eager", "step"] = "auto"
    """How the update runs: operation by operation, or compiled (`step`), a minibatch at a time.
    `auto` compiles if the run is long enough for that to pay off."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` runs networks under autocast; heads, losses and optimizer stay in float32."""


@config_class
class SystemConfig:
    """The processes of a run."""

    num_processes: Count = 1
    """Processes that `metta train` starts for this run on this machine; each computes `num_shards` /
    `num_processes` shards."""
    rank_timeout_seconds: Annotated[float, Ge(1), Le(86_400)] = 10.0
    """Time without a sign of life after which a rank counts as gone."""
    trusted_network: bool = False
    """Let ranks on several machines meet: whoever reaches the network between them can take part."""
    max_rank_restarts: Whole = 3
    """How often within any hour all ranks start again from the last checkpoint when one is lost."""


@config_class
class TrainerConfig:
    """Everything about training but the network and the environment."""

    total_timesteps: Count = 100_000
    """Agent steps of the whole run."""
    seed: Whole = 1
    """Root of every random number of the run."""
    device: Annotated[str, BeforeValidator(str)] = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto`: a GPU if available."""
    recipe: Literal["auto", "none"] = "auto"
    """`auto`: settings that were not chosen follow from what the environment is; `none`: from defaults."""
    verbose: bool = True
    """Show progress while training."""
    curriculum: CurriculumConfig = dataclasses.field(default_factory=CurriculumConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    rollout: RolloutConfig = dataclasses.field(default_factory=RolloutConfig)
    collect: CollectConfig = dataclasses.field(default_factory=CollectConfig)
    self_play: SelfPlayConfig = dataclasses.field(default_factory=SelfPlayConfig)
    numerics: NumericsConfig = dataclasses.field(default_factory=NumericsConfig)
    system: SystemConfig = dataclasses.field(default_factory=SystemConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    logging: LoggingConfig = dataclasses.field(default_factory=LoggingConfig)

    @model_validator(mode="after")
    def _rollout_divides(self) -> "TrainerConfig":
        raise_broken([*group_rules(self.rollout), *shard_rules(self), *collect_rules(self)])
        return self


@config_class
class AgentConfig:
    """The network, its action distribution and its normalisation."""

    name: Literal["auto", "mlp", "simple_cnn", "nature_cnn", "lstm", "gru"] = "auto"
    """Registry key; `auto` chooses by the observation, `lstm` and `gru` are `auto` with a core."""
    hidden_size: Count = 64
    """Width of hidden layers and of the recurrent core."""
    num_layers: Count = 2
    """Hidden layers of an MLP."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Between layers of an MLP (convolutions use relu)."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core between encoder and heads."""
    share_encoder: bool = False
    """One encoder for actor and critic; recurrent and convolutional agents always share."""
    std: Literal["parameter", "state"] = "parameter"
    """Box actions: deviation is a free parameter, or an output of the network."""
    log_std_init: Annotated[float, Ge(-20), Le(2)] = 0.0
    """Box actions: logarithm of the first deviation."""
    squash: bool = False
    """Box actions: tanh into the bounds instead of clipping at them."""
    normalize_observations: bool = False
    """Shift and scale float observations by their running moments, kept inside the policy."""
    normalize_returns: bool = False
    """Learn values in units of the returns' running deviation, kept inside the policy."""
    image_scale: Positive = 255.0
    """What uint8 grids and images are divided by: their largest number."""
    observation_clip: Positive = 10.0
    """Bound of normalised observations."""


@config_class
class TrainingConfig:
    """A whole experiment."""

    experiment_name: Name = "metta"
    """Names the run; with the default, commands name it after its environment."""
    agent: AgentConfig = dataclasses.field(default_factory=AgentConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)

    @property
    def env(self) -> str:
        """The environment that is trained on: ``trainer.curriculum.env``."""
        return self.trainer.curriculum.env

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "TrainingConfig":
        """A configuration from nested or flat settings by any usual name, over the defaults.

        TrainingConfig.from_dict({"agent": {"name": "simple_cnn"}, "trainer": {"total_timesteps": 10_000}})
        """
        from metta.train.layers import config_from_mapping  # it builds on this module

        return config_from_mapping(settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which `from_dict` makes an equal configuration."""
        data: dict[str, Any] = plain_data(self)
        return data

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> "TrainingConfig":
        """A configuration from a file, over the defaults; problems are named with their line."""
        from metta.train.layers import resolve  # it builds on this module

        return resolve(None, [Path(path)], check_sizes=False).config

    def to_yaml(self, path: str | os.PathLike[str]) -> Path:
        """Write every setting to a file, whole or not at all."""
        from metta.train.parsing.yaml_text import write_yaml  # yaml is only loaded here

        return write_yaml(path, self.to_dict())


def __getattr__(name: str) -> Any:
    """Presets can be imported from here too: they are made of this module's classes."""
    from metta.train import presets

    if name in presets.__all__:
        return getattr(presets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
