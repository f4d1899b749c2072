"""MuZero (Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model").

The paper is arXiv 1911.08265. MuZero learns a model of the environment that predicts latent states, rewards, values and
policies. In each step, a tree search with this model (PUCT, with Dirichlet noise at the root) counts how often it
visits each action. The action is sampled from these visit counts, with a temperature that falls during the run. The
model learns the rewards, the visit counts as the policy, and n-step returns as the value.

There are three networks. The representation maps an observation to a latent state `[Z]`. The dynamics map a latent
state and an action to the next latent state and the reward. The prediction maps a latent state to a policy and a value.
A batch has B windows, which are L consecutive steps of an episode. Each step has the results of the search that chose
its action: a policy and a root value. A step with a random action had no search, and the loss leaves its zeros out. The
loss unrolls the dynamics over the first K actions of a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drl_cli.algos import base
from drl_cli.algos.base import AlgoConfig, Batch, Counts, Update
from drl_cli.algos.context import AlgoContext
from drl_cli.algos.model_based._shared import (
    SearchModel,
    Support,
    action_inputs,
    as_windows,
    build_heads,
    build_networks,
    halved,
    legal_actions,
    make_model,
    masked,
    no_memory,
    stored,
    unroll_targets,
)
from drl_cli.algos.torch_policy import TorchPolicy
from drl_cli.errors import Refused
from drl_cli.losses.critics import mean
from drl_cli.losses.policy import permitted
from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.encoder import action_mask
from drl_cli.optim.gradients import Gradients, Nets
from drl_cli.optim.optimizer import Optimizer
from drl_cli.optim.params import Params
from drl_cli.optim.schedules import linear
from drl_cli.search.formulas import Puct
from drl_cli.types import Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema, map_parts, num_rows
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, Natural, NonNegative, Positive

if TYPE_CHECKING:
    from torch import nn

    from drl_cli.search.model import Model
    from drl_cli.search.run import Found

ACTIONS = ("discrete",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")
EXPLORATION = ("temperature",)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(AlgoConfig):
    """The options that all variants of MuZero share. conf/algo/muzero.yaml explains them."""

    lr: Positive
    simulations: Natural
    unroll_steps: Count
    support: Count
    value_weight: NonNegative
    consistency: NonNegative
    value_prefix: bool
    fresh_values: bool
    reanalyze: Fraction
    target_period: Count

    def window_problems(self, seq_len: int) -> Iterator[str]:
        needed = self.unroll_steps + self.n_step + 1
        if seq_len < needed:
            yield (
                f"replay.seq_len={seq_len} is below {needed} = algo.unroll_steps {self.unroll_steps} + algo.n_step "
                f"{self.n_step} + 1, the steps of a window that {self.name} learns from; say replay.seq_len={needed}"
            )


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """The options of MuZero, which conf/algo/muzero.yaml explains."""

    noise_alpha: Positive
    noise_share: Fraction
    temperature_start: NonNegative
    temperature_end: NonNegative


class Policy(TorchPolicy):
    """Chooses actions by MuZero's search. For exploration, the root's prior has Dirichlet noise.

    An exploring action is drawn with a probability proportional to visits^(1 / temperature).

    `act` also returns the columns `policy` `[E, A]` and `root_value` `[E]`, the results of the search in E
    environments, and `is_random` `[E]`. The training targets are made from these columns.
    """

    @classmethod
    def check(cls, config: Any, network: NetworkConfig, spec: EnvSpec) -> None:
        if not network.hidden:
            raise Refused(f"network.hidden=[]: {config.name} needs a hidden layer; say network.hidden=[128]")
        if network.memory != "none":
            raise Refused(
                f"network.memory={network.memory}: the model of {config.name} unrolls from single observations; "
                "say network.memory=none"
            )
        if not config.simulations:
            raise Refused(
                "algo.simulations=0: training needs a search, whose results are the targets; say algo.simulations=25 "
                "(drl-eval and drl-play take 0, which plays the prior)"
            )

    @staticmethod
    def build(config: Any, network: NetworkConfig, spec: EnvSpec) -> Mapping[str, nn.Module]:
        return build_networks(config, network, spec, spec.action.size)

    @staticmethod
    def extra_columns(config: Any, network: NetworkConfig, spec: EnvSpec) -> Schema:
        return {
            "policy": Column((spec.action.size,), "float32"),
            "root_value": Column((), "float32"),
            "is_random": Column((), "bool"),
        }

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int) -> None:
        from drl_cli.chains.replays import Replays  # imports torch
        from drl_cli.search.model import Repeated

        with torch.random.fork_rng(devices=[]):  # so that a new policy does not advance the trainer's generator
            super().__init__(config, network, spec, seed)
        model = make_model(Nets(self.modules), config, Support(config.support), spec.action)
        # A search is faster if it replays the model's recorded tensor operations. A Replays records a function of a
        # dict of tensors. Repeated makes this function, `call`, from `model.recurrent`, and passes it to the lambda.
        self.model = Repeated(model, lambda call: Replays(call, model))

    def search(self, obs: Any, explores: bool) -> tuple[Array, Found]:
        """Search from observations `[E, ...]`; return the actions `[E, ...]` and the results of the search.

        If `explores` is False, return the best actions and use no random numbers. Variants override this method.
        """
        from drl_cli.search.run import sample_visits  # imports torch

        if not explores:
            found = search(self.config, self.model, obs, None)
            return found.action, found
        rows = num_rows(obs)
        noise = self.rng.dirichlet([self.config.noise_alpha] * self.action.size, rows)
        found = search(self.config, self.model, obs, noise)
        temperature = self.exploration.get("temperature", self.config.temperature_start)
        action = sample_visits(found.policy, temperature, self.rng.random(rows))
        return action, found

    def stored(self, found: Found) -> dict[str, Tensor]:
        """Return the columns that replay stores, `[E, ...]`, made from the results of a search."""
        return stored(found)

    def sample(self, obs: Any, last: PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        return self.search_columns(obs, explores=True)

    def search_columns(self, obs: Any, explores: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Search from observations `[E, ...]`; return the actions `[E, ...]` and the columns that replay stores."""
        action, found = self.search(obs, explores)
        return torch.from_numpy(action), self.stored(found)

    def reanalyze(self, obs: Obs) -> Columns:
        return self._run("reanalyze", obs, None)

    def _reanalyze_columns(self, obs: Any, last: PreviousStep | None) -> dict[str, Tensor]:
        _, columns = self.search_columns(obs, explores=False)
        return {**columns, **self._declared(obs)}

    def warm_up(self, obs: Any, last: PreviousStep | None) -> dict[str, Tensor]:
        """Return columns of zeros for E random actions, because random actions need no search."""
        rows = num_rows(obs)
        # The base class fills the column `is_random`.
        shapes = {name: column.shape for name, column in self.declared_columns.items() if name != "is_random"}
        return {name: torch.zeros(rows, *shape) for name, shape in shapes.items()}

    def choose(self, obs: Any) -> Tensor:
        action, _ = self.search(obs, explores=False)
        return torch.from_numpy(action)

    def prior(self, obs: Any) -> Tensor:
        latent = self.modules["representation"](obs)
        logits, _ = self.modules["prediction"](latent)
        best: Tensor = permitted(logits, action_mask(obs)).argmax(-1)
        return best


class Algorithm(base.Algorithm):
    """Trains the learned model for discrete actions.

    Re-analysis replaces the stored results of a search by the results of a new search with the target networks. For
    other actions, a variant overrides `policy_size`, `policy_loss` and `actions`.
    """

    def __init__(self, config: Any, network: NetworkConfig, spec: EnvSpec, seed: int, context: AlgoContext) -> None:
        self.config, self.context, self.action = config, context, spec.action
        networks = build_networks(config, network, spec, self.policy_size(spec))
        heads = build_heads(network) if config.consistency else {}  # only the loss needs them
        self.params = Params(context, **networks, **heads)
        self.policy_parts = tuple(networks)
        self.optimizer = Optimizer(self.params, dict.fromkeys((*networks, *heads), config.lr), context)
        self.support = Support(config.support, context.device)
        self.random = self.params.generator("noise", seed + 1)
        self.gradients = Gradients(self.params, self.loss, context)
        self.is_one_step = not config.reanalyze  # an update with a search cannot be compiled
        self.has_targets = config.reanalyze > 0.0 or config.fresh_values
        if self.has_targets:
            targets = {name: self.params.target(name) for name in self.policy_parts}
            self.target_model = make_model(Nets(targets), config, self.support, spec.action)

    def policy_size(self, spec: EnvSpec) -> int:
        """Return the number of outputs that give the policy in one state. Here, it is one logit for each action."""
        return spec.action.size

    def search(self, model: SearchModel, obs: Any) -> dict[str, Tensor]:  # Any: a tensor, or a dict of tensors
        """Search from observations `[N, ...]` without exploration, and return the columns that the policy stores."""
        return stored(search(self.config, model, obs, None))

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        start, end = self.config.temperature_start, self.config.temperature_end
        return {"temperature": linear(env_steps, start=start, end=end, length=self.context.total_env_steps)}

    def policy_loss(self, out: Tensor, target: Tensor, rows: Batch) -> Tensor:
        """Return the loss of the predicted policies, `[B, K + 1]`: the cross-entropy with the policies of the searches.

        `out` `[B, K + 1, A]` are the predicted logits, and `target` `[B, K + 1, A]` are the searches' probabilities.
        Subclasses also use other columns of `rows`.
        """
        return -(target * out.log_softmax(-1)).sum(-1)

    def loss(self, nets: Nets, rows: Batch, random: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return MuZero's loss (a scalar, equation 1), and a dict with metrics and the priorities `td_error` `[B]`.

        The loss of a window is the sum of the losses of reward and policy, and of the weighted losses of value and
        consistency. Value and policy have a loss in each of K + 1 latent states; all after the first are divided by K.
        The reward's loss is the mean over the K actions. The loss of an unknown target is 0. Each step of the dynamics
        halves the gradient (appendix G). `random` `[B, K]`, uniform in [0, 1), chooses the actions after the end of an
        episode. With `value_prefix`, the target after k actions is the sum of the first k rewards, not the k-th reward.
        """
        config = self.config
        targets = unroll_targets(rows, config.n_step, config.unroll_steps)
        actions = self.actions(rows, targets.is_past_end, random)
        policy, value, reward, latent = self.unroll(nets, rows, actions)
        num_actions = reward.shape[1]
        value_losses = masked(self.support.loss(value, targets.value), targets.has_value)  # [B, K + 1]
        policy_losses = masked(self.policy_loss(policy, targets.policy, rows), targets.has_policy)  # [B, K + 1]
        reward_target = targets.reward.cumsum(1) if config.value_prefix else targets.reward
        reward_losses = masked(self.support.loss(reward, reward_target), targets.has_reward)  # [B, K]
        reward_loss = reward_losses.mean(1)
        value_loss = value_losses[:, 0] + value_losses[:, 1:].sum(1) / num_actions
        policy_loss = policy_losses[:, 0] + policy_losses[:, 1:].sum(1) / num_actions
        window_loss = reward_loss + config.value_weight * value_loss + policy_loss  # [B]
        consistency = {}
        if config.consistency:
            consistency_loss = self.consistency_loss(nets, rows, latent)
            window_loss = window_loss + config.consistency * consistency_loss
            consistency = {"consistency_loss": consistency_loss.mean()}
        loss = mean(window_loss, rows.get("weight"))
        with torch.no_grad():
            root_value = self.support.scalars(value[:, 0])
            td_error = masked((root_value - targets.value[:, 0]).abs(), targets.has_value[:, 0])
        metrics = {"reward_loss": reward_loss.mean(), "value_loss": value_loss.mean()}
        metrics |= {"policy_loss": policy_loss.mean(), "value_mean": root_value.mean(), **consistency}
        return loss, {"model_loss": loss, **metrics, "td_error": td_error}

    def consistency_loss(self, nets: Nets, rows: Batch, latent: Tensor) -> Tensor:
        """Return EfficientZero's consistency loss of each window, `[B]` (Ye et al. 2021, arXiv 2111.00210, sec. 4.1).

        The loss compares the unrolled latent states `latent` `[B, K, Z]` with the observations of the same steps. It is
        the negative cosine similarity of two vectors, as in SimSiam, averaged over K steps. One vector is the latent
        state after projection and predictor. The other is the observation after representation and projection, without
        a gradient. Steps after the end of the window or the episode have loss 0.
        """
        steps = min(latent.shape[1], rows["valid"].shape[1] - 1)
        obs = map_parts(lambda x: x[:, 1 : steps + 1], rows["obs"])
        target = nets.frozen.projection(nets.frozen.representation(obs))
        predicted = nets.predictor(nets.projection(latent[:, :steps]))
        similarity = torch.cosine_similarity(predicted, target, -1)
        return -masked(similarity, rows["valid"][:, 1 : steps + 1]).sum(1) / latent.shape[1]

    def unroll(self, nets: Nets, rows: Batch, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Encode the first observation of each window, and apply the dynamics to `actions` `[B, K, A]`.

        Return four tensors: the outputs of the policy `[B, K + 1, P]`, the logits of the values `[B, K + 1, S]`, the
        logits of the rewards `[B, K, S]`, and the latent states after each action `[B, K, Z]`. S is the number of bins
        of rewards and values. With `value_prefix`, each reward is replaced by the sum of the rewards so far.
        """
        first_obs = map_parts(lambda x: x[:, 0], rows["obs"])
        latent = nets.representation(first_obs)
        predictions, rewards, latents = [nets.prediction(latent)], [], []
        memory = no_memory(latent) if self.config.value_prefix else None
        for action in actions.unbind(1):
            latent, reward = nets.dynamics(halved(latent), action)
            if memory is not None:
                reward, memory = nets.value_prefix(latent, memory)
            predictions.append(nets.prediction(latent))
            rewards.append(reward)
            latents.append(latent)
        policies, values = zip(*predictions, strict=True)
        return torch.stack(policies, 1), torch.stack(values, 1), torch.stack(rewards, 1), torch.stack(latents, 1)

    def actions(self, rows: Batch, is_past_end: Tensor, random: Tensor) -> Tensor:
        """Return the first K actions of each window, `[B, K, A]`, one-hot. Actions after the episode's end are random.

        `is_past_end`, bool with at least K columns, is True after the end. `random` `[B, K]` is uniform in [0, 1).
        """
        num = random.shape[1]
        random_actions = (random * self.action.size).long()
        actions = torch.where(is_past_end[:, :num], random_actions, rows["action"][:, :num])
        return action_inputs(actions, self.action)

    def update(self, batch: Batch, counts: Counts) -> Update:
        rows = as_windows(batch)
        if self.has_targets and counts.opt_steps % self.config.target_period == 0:
            self.params.follow(1.0)  # copies the networks to the target networks, which compute this update's targets
        if self.config.fresh_values:
            rows |= self.fresh_values(rows)
        if self.config.reanalyze:
            rows = self.reanalyzed(rows)
        num_windows, length = rows["valid"].shape
        random = self.context.rand(num_windows, min(self.config.unroll_steps, length), self.random)
        loss, found = self.gradients(rows, random)
        self.optimizer.step(loss)
        metrics = dict(found)
        priorities = metrics.pop("td_error")
        if "valid" in batch:  # windows: all steps of a window get its priority
            priorities = priorities.unsqueeze(1).expand(num_windows, length)
        return Update(metrics, priorities=priorities)  # [B], or [B, L] for windows

    def fresh_values(self, rows: Batch) -> dict[str, Tensor]:
        """Return columns that replace the root values of searches: `root_value` and `has_root`, `[B, L]` each.

        `root_value` has the values that the target networks predict for all steps. `has_root` is True.
        """
        flat_obs = map_parts(lambda x: x.flatten(0, 1), rows["obs"])  # [B L, ...]
        with torch.no_grad():
            _, _, value = self.target_model.root(flat_obs)
        return {"root_value": value.view_as(rows["reward"]), "has_root": torch.ones_like(rows["valid"])}

    def reanalyzed(self, rows: dict[str, Any]) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
        """Search again from every step of some windows. Replace the results in `rows`, and return `rows`.

        The fraction `config.reanalyze` of the windows is searched again. These windows are evenly spaced in the batch.
        """
        num_windows, length = rows["valid"].shape
        fraction = self.config.reanalyze
        number = torch.arange(1, num_windows + 1, device=rows["valid"].device).double()
        quota = number * fraction  # of the first 1, 2, ... windows, this many are chosen, rounded down
        is_chosen = quota.floor() > (quota - fraction).floor()  # the rounded quota grows with this window
        chosen = is_chosen.nonzero().squeeze(1)
        flat_obs = map_parts(lambda x: x[chosen].flatten(0, 1), rows["obs"])  # [number of chosen windows * L, ...]
        columns = self.search(self.target_model, flat_obs)
        for name, column in columns.items():
            new = column.to(rows[name]).view(len(chosen), length, *rows[name].shape[2:])
            rows[name] = rows[name].index_copy(0, chosen, new)  # a new tensor: the batch must not change
        rows["is_random"] = rows["is_random"].index_fill(0, chosen, False)
        rows["has_root"] = rows["has_root"].index_fill(0, chosen, True)
        return rows


def search(config: Any, model: Model, obs: Any, noise: Array | None) -> Found:  # Any: Config, and observations
    """Make one tree search for each of the observations `[N, ...]`; return the results.

    `noise` `[N, A]` is Dirichlet noise for exploration, or None. `config.simulations` is the number of simulations.
    """
    from drl_cli.search.run import puct  # imports torch

    rule = Puct(noise_share=config.noise_share)
    return puct(model, obs, config.simulations, rule, noise=noise, legal=legal_actions(obs))
