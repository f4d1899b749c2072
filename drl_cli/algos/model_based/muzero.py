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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.model_based import _shared
from drl_cli.algos.model_based._shared import action_inputs, masked, networks
from drl_cli.api import nn, torch
from drl_cli.search.formulas import Puct
from drl_cli.types import map_parts, num_rows
from drl_cli.utils.lazy import Tensor

ACTIONS = ("discrete",)
TABLES = ("windows",)
MODES = ("single", "sync", "async")
EXPLORATION = ("temperature",)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(drl.AlgoConfig):
    """The options that all variants of MuZero share. conf/algo/muzero.yaml explains them."""

    lr: drl.Positive
    simulations: drl.Natural
    unroll_steps: drl.Count
    support: drl.Count
    value_weight: drl.NonNegative
    consistency: drl.NonNegative
    value_prefix: bool
    fresh_values: bool
    reanalyze: drl.Fraction
    target_period: drl.Count

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

    noise_alpha: drl.Positive
    noise_share: drl.Fraction
    temperature_start: drl.NonNegative
    temperature_end: drl.NonNegative


def search(config: Any, model: Any, obs: Any, action: Any, explore: Mapping[str, Any] | None) -> _shared.Searched:
    """Search from observations `[N, ...]`; return the actions `[N, ...]` and the columns that replay stores.

    `explore` is None for the best actions. Otherwise, it has a generator `rng`: the root's prior has Dirichlet noise,
    and an action is drawn with a probability proportional to visits^(1 / temperature).
    """
    rows, rule, legal = num_rows(obs), Puct(noise_share=config.noise_share), _shared.legal_actions(obs)
    noise = explore["rng"].dirichlet([config.noise_alpha] * action.size, rows) if explore else None
    found = drl.search.puct(model, obs, config.simulations, rule, noise=noise, legal=legal)
    chosen = found.action
    if explore:
        temperature = explore.get("temperature", config.temperature_start)
        chosen = drl.search.sample_visits(found.policy, temperature, explore["rng"].random(rows))
    return chosen, _shared.stored(found)


class Policy(drl.TorchPolicy):
    """Chooses actions by the function `search`, which variants replace.

    `act` also returns the columns `policy` `[E, A]` and `root_value` `[E]`, the results of the search in E
    environments, and `is_random` `[E]`. The training targets are made from these columns.
    """

    search = staticmethod(search)
    networks: Callable[..., Mapping[str, nn.Module]] = staticmethod(networks)

    @classmethod
    def check(cls, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> None:
        if not network.hidden:
            raise drl.Refused(f"network.hidden=[]: {config.name} needs a hidden layer; say network.hidden=[128]")
        if network.memory != "none":
            raise drl.Refused(
                f"network.memory={network.memory}: the model of {config.name} unrolls from single observations; "
                "say network.memory=none"
            )
        if not config.simulations:
            raise drl.Refused(
                "algo.simulations=0: training needs a search, whose results are the targets; say algo.simulations=25 "
                "(drl-eval and drl-play take 0, which plays the prior)"
            )

    @classmethod
    def build(cls, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> Mapping[str, nn.Module]:
        made = cls.networks(config, network, spec)
        return {name: made[name] for name in _shared.policy_parts(config)}

    @staticmethod
    def extra_columns(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> drl.Schema:
        return {
            "policy": drl.Column((spec.action.size,), "float32"),
            "root_value": drl.Column((), "float32"),
            "is_random": drl.Column((), "bool"),
        }

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int) -> None:
        from drl_cli.chains.replays import Replays  # imports torch
        from drl_cli.search.model import Repeated

        with torch.random.fork_rng(devices=[]):  # so that a new policy does not advance the trainer's generator
            super().__init__(config, network, spec, seed)
        model = _shared.make_model(drl.Nets(self.modules), config, _shared.support(config), spec.action)
        # A search is faster if it replays the model's recorded tensor operations.
        self.model = Repeated(model, lambda call: Replays(call, model))

    def searched(self, obs: Any, explore: Mapping[str, Any] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Search from observations `[E, ...]`; return the actions `[E, ...]` and the columns that replay stores."""
        action, columns = self.search(self.config, self.model, obs, self.action, explore)
        return torch.from_numpy(action), columns

    def sample(self, obs: Any, last: drl.PreviousStep | None) -> tuple[Tensor, dict[str, Tensor]]:
        return self.searched(obs, {**self.exploration, "rng": self.rng})

    def reanalyze(self, obs: drl.Obs) -> drl.Columns:
        return self._run("reanalyze", obs, None)

    def _reanalyze_columns(self, obs: Any, last: drl.PreviousStep | None) -> dict[str, Tensor]:
        return {**self.searched(obs)[1], **self._declared(obs)}

    def warm_up(self, obs: Any, last: drl.PreviousStep | None) -> dict[str, Tensor]:
        """Return columns of zeros for E random actions, because random actions need no search."""
        rows = num_rows(obs)
        # The base class fills the column `is_random`.
        shapes = {name: column.shape for name, column in self.declared_columns.items() if name != "is_random"}
        return {name: torch.zeros(rows, *shape) for name, shape in shapes.items()}

    def choose(self, obs: Any) -> Tensor:
        return self.searched(obs)[0]

    def prior(self, obs: Any) -> Tensor:
        latent = self.modules["representation"](obs)
        logits, _ = self.modules["prediction"](latent)
        best: Tensor = drl.permitted(logits, drl.action_mask(obs)).argmax(-1)
        return best


class Algorithm(drl.Algorithm):
    """Trains the learned model for discrete actions.

    Re-analysis replaces the stored results of a search by the results of a new search with the target networks. For
    other actions, a variant overrides `policy_loss` and `actions`.
    """

    search, file, has_own_weights = staticmethod(search), {"networks": networks}, False

    def __init__(
        self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: drl.Context
    ) -> None:
        self.policy_parts, self.support = _shared.policy_parts(config), _shared.support(config, context.device)
        self.is_one_step = not config.reanalyze  # an update with a search cannot be compiled
        if config.reanalyze or config.fresh_values:
            self.targets = self.policy_parts  # type: ignore[misc]
        super().__init__(config, network, spec, seed, context)
        self.target_model = _shared.make_model(self.nets.target, config, self.support, spec.action)

    def exploration(self, env_steps: int) -> Mapping[str, float]:
        start, end = self.config.temperature_start, self.config.temperature_end
        return {"temperature": drl.linear(env_steps, start=start, end=end, length=self.context.total_env_steps)}

    def policy_loss(self, out: Tensor, target: Tensor, rows: drl.Batch) -> Tensor:
        """Return the loss of the predicted policies, `[B, K + 1]`: the cross-entropy with the policies of the searches.

        `out` `[B, K + 1, A]` are the predicted logits, and `target` `[B, K + 1, A]` are the searches' probabilities.
        Subclasses also use other columns of `rows`.
        """
        return -(target * out.log_softmax(-1)).sum(-1)

    def loss(self, nets: drl.Nets, rows: drl.Batch, random: Tensor) -> tuple[Tensor, drl.Metrics, Tensor]:
        """Return MuZero's loss (a scalar, equation 1), metrics, and the priorities |TD error| `[B]`.

        The loss of a window is the sum of the losses of reward and policy, and of the weighted losses of value and
        consistency. Value and policy have a loss in each of K + 1 latent states; all after the first are divided by K.
        The reward's loss is the mean over the K actions. The loss of an unknown target is 0. Each step of the dynamics
        halves the gradient (appendix G). `random` `[B, K]`, uniform in [0, 1), chooses the actions after the end of an
        episode. With `value_prefix`, the target after k actions is the sum of the first k rewards, not the k-th reward.
        """
        config = self.config
        targets = _shared.unroll_targets(rows, config.n_step, config.unroll_steps)
        actions = self.actions(rows, targets.is_past_end, random)
        policy, value, reward, latent = self.unroll(nets, rows, actions)
        num_actions = reward.shape[1]
        value_losses = masked(_shared.scalar_loss(value, targets.value, self.support), targets.has_value)  # [B, K + 1]
        policy_losses = masked(self.policy_loss(policy, targets.policy, rows), targets.has_policy)  # [B, K + 1]
        reward_target = targets.reward.cumsum(1) if config.value_prefix else targets.reward
        reward_losses = masked(_shared.scalar_loss(reward, reward_target, self.support), targets.has_reward)  # [B, K]
        reward_loss = reward_losses.mean(1)
        value_loss = value_losses[:, 0] + value_losses[:, 1:].sum(1) / num_actions
        policy_loss = policy_losses[:, 0] + policy_losses[:, 1:].sum(1) / num_actions
        window_loss = reward_loss + config.value_weight * value_loss + policy_loss  # [B]
        consistency = {}
        if config.consistency:
            consistency_loss = self.consistency_loss(nets, rows, latent)
            window_loss = window_loss + config.consistency * consistency_loss
            consistency = {"consistency_loss": consistency_loss.mean()}
        loss = drl.losses.mean(window_loss, rows.get("weight"))
        with torch.no_grad():
            root_value = _shared.scalars(value[:, 0], self.support)
            td_error = masked((root_value - targets.value[:, 0]).abs(), targets.has_value[:, 0])
        metrics = {"reward_loss": reward_loss.mean(), "value_loss": value_loss.mean()}
        metrics |= {"policy_loss": policy_loss.mean(), "value_mean": root_value.mean(), **consistency}
        return loss, {"model_loss": loss, **metrics}, td_error

    def consistency_loss(self, nets: drl.Nets, rows: drl.Batch, latent: Tensor) -> Tensor:
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

    def unroll(self, nets: drl.Nets, rows: drl.Batch, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Encode the first observation of each window, and apply the dynamics to `actions` `[B, K, A]`.

        Return four tensors: the outputs of the policy `[B, K + 1, P]`, the logits of the values `[B, K + 1, S]`, the
        logits of the rewards `[B, K, S]`, and the latent states after each action `[B, K, Z]`. S is the number of bins
        of rewards and values. With `value_prefix`, each reward is replaced by the sum of the rewards so far.
        """
        first_obs = map_parts(lambda x: x[:, 0], rows["obs"])
        latent = nets.representation(first_obs)
        predictions, rewards, latents = [nets.prediction(latent)], [], []
        memory = _shared.no_memory(latent) if self.config.value_prefix else None
        for action in actions.unbind(1):
            latent, reward = nets.dynamics(_shared.halved(latent), action)
            if memory is not None:
                reward, memory = nets.value_prefix(latent, memory)
            predictions.append(nets.prediction(latent))
            rewards.append(reward)
            latents.append(latent)
        policies, values = zip(*predictions, strict=True)
        return torch.stack(policies, 1), torch.stack(values, 1), torch.stack(rewards, 1), torch.stack(latents, 1)

    def actions(self, rows: drl.Batch, is_past_end: Tensor, random: Tensor) -> Tensor:
        """Return the first K actions of each window, `[B, K, A]`, one-hot. Actions after the episode's end are random.

        `is_past_end`, bool with at least K columns, is True after the end. `random` `[B, K]` is uniform in [0, 1).
        """
        num = random.shape[1]
        random_actions = (random * self.spec.action.size).long()
        actions = torch.where(is_past_end[:, :num], random_actions, rows["action"][:, :num])
        return action_inputs(actions, self.spec.action)

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        rows = _shared.as_windows(batch)
        if self.targets and counts.opt_steps % self.config.target_period == 0:
            self.params.follow(1.0)  # copies the networks to the target networks, which compute this update's targets
        if self.config.fresh_values:
            rows |= self.fresh_values(rows)
        if self.config.reanalyze:
            rows = self.reanalyzed(rows)
        num_windows, length = rows["valid"].shape
        random = self.context.rand(num_windows, min(self.config.unroll_steps, length), self.generator)
        loss, metrics, priorities = self.loss(self.nets, rows, random)
        self.optimizer.minimize(loss)
        if "valid" in batch:  # windows: all steps of a window get its priority
            priorities = priorities.unsqueeze(1).expand(num_windows, length)
        return drl.Update(metrics, priorities=priorities)  # [B], or [B, L] for windows

    def fresh_values(self, rows: drl.Batch) -> dict[str, Tensor]:
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
        with torch.no_grad():
            _, columns = self.search(self.config, self.target_model, flat_obs, self.spec.action, None)
        for name, column in columns.items():
            new = column.to(rows[name]).view(len(chosen), length, *rows[name].shape[2:])
            rows[name] = rows[name].index_copy(0, chosen, new)  # a new tensor: the batch must not change
        rows["is_random"] = rows["is_random"].index_fill(0, chosen, False)
        rows["has_root"] = rows["has_root"].index_fill(0, chosen, True)
        return rows
