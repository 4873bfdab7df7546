"""`PPOOptimizer`: advantages, minibatches, and the passes over a rollout."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metta.agent.normalizers import MAX_DEVIATIONS
from metta.agent.policy import Policy
from metta.errors import ConfigError, PolicyError
from metta.ops.diagnostics import explained_by, value_moments
from metta.rl.collect.buffer import STATE_PREFIX, RolloutBuffer, obs_column, split_obs
from metta.rl.collect.rollout_data import collected_columns
from metta.rl.collect.sharded_collector import Experience
from metta.rl.learn.advantages import advantages_of
from metta.rl.learn.custom_losses import CustomLoss, LossFunction, as_custom_losses
from metta.rl.learn.driver import Driver, EagerDriver, current_log_probs, num_items
from metta.rl.learn.optimizer import FlatAdam, adapted_rate, as_stepper, scheduled
from metta.rl.learn.shards import merged_moments, run_shards, shards_of
from metta.rl.learn.update import Minibatch, UpdateCoefs, UpdateRules, minibatch_loss
from metta.rl.learn.update_log import LOSS_NAMES, RareWarning, UpdateLog, UpdateReport
from metta.rl.ranks import Ranks
from metta.seeding import derive_seed, numpy_generator, seed_torch
from metta.train.batch_sizing import check_minibatch_size, minibatch_sizes
from metta.train.train_config import OptimizerConfig, PPOConfig

__all__ = ["PPOOptimizer"]


class PPOOptimizer:
    """Learns from rollouts; never touches an environment and never changes its input.

        ppo = PPOOptimizer(policy, optimizer, device, PPOConfig())
        losses = ppo.update(experience, custom_loss_fns=[my_loss])

    The optimizer is one of `make_optimizer` or any of torch's; the driver is one of `make_driver`, over
    the same optimizer, and eager where none is given. The order of samples in update k is a
    function of (seed, shard, k). With several shards, the rows that this rank learns from are those of its
    shards, one after the other; the result is the same on all ranks.
    """

    state_name = "ppo"
    state_version = 1

    def __init__(  # noqa: PLR0913  # four parts by position, then how they are used: by name
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        device: torch.device | str,
        config: PPOConfig,
        *,
        optimizer_config: OptimizerConfig | None = None,
        driver: Driver | None = None,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        if not isinstance(policy, Policy):
            raise PolicyError(
                f"PPOOptimizer needs a metta Policy, got {type(policy).__name__}; wrap the module: "
                "Policy(module, env.observation_space, env.action_space)"
            )
        if not isinstance(config, PPOConfig):
            raise ConfigError(
                f"PPOOptimizer needs a PPOConfig, got a {type(config).__name__}; of a TrainerConfig "
                "pass its ppo"
            )
        self.policy, self.optimizer, self.config = policy, optimizer, config
        self.device = torch.device(device)
        self.optimizer_config = optimizer_config
        self.seed, self.ranks = seed, ranks or Ranks()
        self.num_updates = 0
        self.skipped_in_a_row = 0
        self._warn_of_skipped, self._warn_of_bounded = RareWarning(), RareWarning()
        self.base_lr: float = optimizer.param_groups[0]["lr"]
        rates = [group["lr"] for group in optimizer.param_groups]
        self._rate_shares = [rate / self.base_lr if self.base_lr else 1.0 for rate in rates]
        self.driver: Driver = driver or EagerDriver(optimizer)
        self.before_update: Callable[[], None] | None = None
        """Called before each update; may choose the driver."""
        self._architecture = policy.architecture_hash()
        self._check_parameters()

    def _check_parameters(self) -> None:
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        lost = [
            name
            for name, parameter in self.policy.named_parameters()
            if parameter.requires_grad and id(parameter) not in held
        ]
        if lost:
            raise ConfigError(
                f"the optimizer does not hold the policy's parameters {lost}: they would never learn; "
                "build it from policy.parameters(), after wrapping and moving the policy"
            )

    def compute_ppo_loss(
        self,
        obs: Any,
        actions: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        returns: Tensor,
        values: Tensor,
    ) -> dict[str, Tensor]:
        """PPO's terms for samples ``[B, ...]`` (``[L, B, ...]`` for recurrent policies), with gradients.

        Exactly ``policy_loss, value_loss, entropy_loss, total_loss, approx_kl, clipfrac``. `obs` is one
        tensor, or for nested spaces a mapping of leaves; advantages are used as they are given.
        """
        spec = self.policy.obs_spec
        leaves = {spec.leaves[0].key: obs} if isinstance(obs, Tensor) else dict(obs)
        columns = {
            "actions": actions,
            "log_probs": old_logprobs,
            "advantages": advantages,
            "returns": returns,
            "values": values,
            **{obs_column(spec, key): leaf for key, leaf in leaves.items()},
        }
        if not self.policy.is_recurrent:
            columns = {name: column[None] for name, column in columns.items()}
        state = self.policy.initial_state(columns["values"].shape[1])
        batch = Minibatch(columns, split_obs(spec, columns), state, None)
        terms = minibatch_loss(self.policy, batch, self._coefs(0.0)).terms
        parts = (*terms[:4].unbind(), *terms[4:].detach().unbind())
        return dict(zip(LOSS_NAMES, parts, strict=True))

    def compute_advantages(
        self,
        columns: RolloutBuffer | Mapping[str, Tensor],
        log_ratios: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """``advantages`` and ``returns`` ``[T, N]`` of a collected rollout, in raw reward units.

        `log_ratios` ``[T, N]`` of present over behaviour probability matter to V-trace only; None
        means that the policy of this moment collected the rollout.
        """
        return advantages_of(collected_columns(columns), self.config, log_ratios)

    def _correct(self, columns: dict[str, Tensor]) -> None:
        """V-trace: advantages for the policy of this moment, which the ratios then start from.

        The importance weights are in the advantages, so ratios and KL are measured against the
        policy that the update begins with. Values stay those that were collected.
        """
        present = current_log_probs(columns, self.policy)
        columns.update(self.compute_advantages(columns, present - columns["log_probs"]))
        columns["log_probs"] = present

    def update(
        self,
        experience: Experience | Mapping[str, Tensor],
        custom_loss_fns: Sequence[CustomLoss | LossFunction] = (),
        *,
        progress: float = 0.0,
    ) -> dict[str, float]:
        """All passes over one rollout; returns means over the minibatches that were computed.

        The policy runs in the mode (training or evaluation) that its owner put it in. `progress` in
        0..1 of the run steers schedules. Advantages in the data are used, absent ones are
        computed (V-trace always computes them, since they depend on the policy of this moment).
        Before it the scale of values is updated, and afterwards the normalisers of observations, unless a
        step had to be skipped. Skipped steps and values that normalisers bounded are in the result, and now
        and then a warning.
        """
        if isinstance(self.optimizer, FlatAdam):
            self.optimizer.reattach()
        if self.before_update is not None:
            self.before_update()
        parts, reduce = len(self.ranks.shards), self.ranks.reduce
        shards = shards_of(experience, parts, self.policy, self._architecture)
        seed_torch(derive_seed(self.seed, "update", epoch=self.num_updates), self.device)
        for columns in shards:
            known = {"rewards", "terminated", "truncated", "next_values"} <= columns.keys()
            if self.config.advantage_estimator == "vtrace" and known:
                self._correct(columns)
            elif not {"advantages", "returns"} <= columns.keys():
                columns.update(self.compute_advantages(columns))
        custom = as_custom_losses(custom_loss_fns)
        coefs = self._coefs(progress, custom)
        self._schedule_learning_rate(progress)
        scale = self.policy.return_normalizer
        before = None if scale is None else scale.copy_state()
        bounded = self.policy.update_value_scale(*shards, reduce=reduce)
        log = self._run_passes(shards, custom, coefs)
        self.num_updates += 1
        report = log.report()
        stats = self._finish(report, shards, coefs)
        if not stats["skipped_steps"]:
            bounded |= self.policy.update_normalizers(*shards, reduce=reduce)
        elif scale is not None and before is not None:  # too absurd to learn from
            bounded = {}
            scale.load_state_dict(before)
        stats["bounded_values"] = float(sum(bounded.values()))
        self._warn(report, bounded)
        return stats

    def _warn(self, report: UpdateReport, bounded: Mapping[str, int]) -> None:
        """Now and then, of what was left out of an update."""
        if not report.finite.all():
            self._warn_of_skipped(
                f"update {self.num_updates}: {(~report.finite).sum()} of {len(report.finite)} optimizer "
                f"steps were skipped because {report.not_finite()} became NaN or infinite; lower the "
                "learning rate, or look at custom losses and rewards (metric: losses/skipped_steps)"
            )
        if any(bounded.values()):
            found = ", ".join(f"{number} of {name}" for name, number in bounded.items() if number)
            self._warn_of_bounded(
                f"update {self.num_updates}: {found} lay more than {MAX_DEVIATIONS:g} deviations from the "
                "mean of all before, and the normaliser took them in at that distance; look at what the "
                "environment returns (metric: losses/bounded_values)"
            )

    def prepare(
        self,
        columns: Mapping[str, Tensor],
        custom_loss_fns: Sequence[CustomLoss | LossFunction] = (),
    ) -> None:
        """Let the driver compile for rollouts laid out like `columns`, before there is one.

        Nothing is learned. `DriverError` where it cannot.
        """
        custom = as_custom_losses(custom_loss_fns)
        if not {"advantages", "returns"} <= columns.keys():
            columns = {**columns, **self.compute_advantages(columns)}
        rules, given = self._given(columns, custom)
        minibatches = next(self._passes(self._minibatch_sizes(columns), self.ranks.shards[0]))
        self.driver.prepare(rules, given, minibatches, self._coefs(0.0, custom))

    def _run_passes(
        self,
        shards: Sequence[Mapping[str, Tensor]],
        custom: Sequence[CustomLoss],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """Hand the columns that matter, and the order of their samples, to the driver."""
        found = [self._given(columns, custom) for columns in shards]
        rules, given = found[0][0], [columns for _, columns in found]
        passes = [
            self._passes(self._minibatch_sizes(columns), shard)
            for shard, columns in zip(self.ranks.shards, shards, strict=True)
        ]
        if self.ranks.num_shards == 1:
            return self.driver.run(rules, given[0], passes[0], coefs)
        stepper = as_stepper(self.optimizer)
        return run_shards(rules, stepper, given, passes, coefs, self.ranks, self._reseed)

    def _reseed(self, shard: int, minibatch: int) -> None:
        """What layers draw in this minibatch of the shard is the same on whichever rank it is computed."""
        epoch = self.num_updates
        seed = derive_seed(self.seed, "minibatch noise", rank=shard, epoch=epoch, index=minibatch)
        seed_torch(seed, self.device)

    def _given(
        self, columns: Mapping[str, Tensor], custom: Sequence[CustomLoss]
    ) -> tuple[UpdateRules, dict[str, Tensor]]:
        rules = UpdateRules(self.policy, self.config, tuple(custom))
        return rules, self._needed_columns(columns, custom)

    def _passes(self, sizes: Sequence[int], shard: int) -> Iterator[Sequence[Tensor]]:
        """For each pass, the samples of a shard's minibatches in a new order."""
        generator = numpy_generator(self.seed, "minibatch", rank=shard, epoch=self.num_updates)
        drawn = [generator.permutation(sum(sizes)) for _ in range(self.config.update_epochs)]
        orders = torch.from_numpy(np.stack(drawn))
        if self.device.type == "cuda":
            # from pinned memory, since a copy from any other waits for what the device is doing
            orders = orders.pin_memory()
        for order in orders.to(self.device, non_blocking=True):
            yield order.split(list(sizes))

    def _needed_columns(
        self, columns: Mapping[str, Tensor], custom: Sequence[CustomLoss]
    ) -> dict[str, Tensor]:
        spec = self.policy.obs_spec
        names = {obs_column(spec, leaf.key): None for leaf in spec.leaves}
        for name in ("actions", "log_probs", "values", "advantages", "returns"):
            names[name] = None
        if "action_masks" in columns:
            names["action_masks"] = None
        if self.driver.needs_valid or not bool(columns["valid"].all()):
            names["valid"] = None
        if self.policy.is_recurrent:
            names["episode_starts"] = None
        states = [name for name in columns if name.startswith(STATE_PREFIX)]
        available = {k: v for k, v in columns.items() if k not in states}
        for loss in custom:
            names.update(dict.fromkeys(loss.columns(available)))
        return {name: columns[name] for name in [*names, *states]}

    def _minibatch_sizes(self, columns: Mapping[str, Tensor]) -> list[int]:
        items = num_items(columns, self.policy)
        steps, rows = columns["values"].shape
        length = steps * rows // items
        num_shards, size = self.ranks.num_shards, self.config.minibatch_size
        check_minibatch_size(
            size, horizon=steps, rows=rows * num_shards, segment_length=length * num_shards
        )
        own = size and size // (length * num_shards)
        return minibatch_sizes(items, self.config.num_minibatches, own)

    def _coefs(self, progress: float, custom: Sequence[CustomLoss] = ()) -> UpdateCoefs:
        config = self.config
        clip = scheduled(config.clip_schedule, config.clip_coef, config.schedule_end, progress)
        entropy = scheduled(config.ent_schedule, config.ent_coef, config.schedule_end, progress)
        value_clip = config.vf_clip_coef
        return UpdateCoefs(
            clip=self._tensor(clip),
            value=self._tensor(config.vf_coef),
            entropy=self._tensor(entropy),
            value_clip=None if value_clip is None else self._tensor(value_clip),
            custom=self._tensor([loss.weight_at(progress) for loss in custom]),
        )

    def _tensor(self, value: float | list[float]) -> Tensor:
        return torch.tensor(value, dtype=self.policy.dtype, device=self.device)

    def _schedule_learning_rate(self, progress: float) -> None:
        chosen = self.optimizer_config
        if chosen is not None and chosen.schedule in ("linear", "cosine"):
            self.learning_rate = scheduled(
                chosen.schedule, self.base_lr, chosen.schedule_end, progress
            )

    @property
    def learning_rate(self) -> float:
        """Step size of the next update, of the first parameter group; others keep their proportion."""
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group, share in zip(self.optimizer.param_groups, self._rate_shares, strict=True):
            group["lr"] = rate * share

    def _finish(
        self, report: UpdateReport, shards: Sequence[Mapping[str, Tensor]], coefs: UpdateCoefs
    ) -> dict[str, float]:
        """Act on the log."""
        kind = shards[0]["values"].dtype
        moments = [value_moments(c["values"], c["returns"], c["valid"].to(kind)) for c in shards]
        explained = explained_by(merged_moments(self.ranks, moments, (2,)), kind)
        self.skipped_in_a_row = report.check_skipped(
            self.skipped_in_a_row, self.config.max_nonfinite_steps
        )
        stats = report.means() | {
            "explained_variance": float(explained),
            "learning_rate": self.learning_rate,
            "clip_coef": float(coefs.clip),
            "ent_coef": float(coefs.entropy),
        }
        chosen = self.optimizer_config
        if chosen is not None and chosen.schedule == "adaptive_kl":
            self.learning_rate = adapted_rate(
                self.learning_rate, stats["approx_kl"], chosen.desired_kl, self.base_lr
            )
        return stats

    def state_dict(self) -> dict[str, Any]:
        """Counters; the optimizer is a separate component."""
        return {
            "num_updates": self.num_updates,
            "skipped_in_a_row": self.skipped_in_a_row,
            "base_lr": self.base_lr,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore counters."""
        self.num_updates = int(state["num_updates"])
        self.skipped_in_a_row = int(state["skipped_in_a_row"])
        self.base_lr = float(state["base_lr"])
