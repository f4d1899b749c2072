"""Deep Q-Network (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518).

DQN learns a Q network from n-step returns, with a target network, and explores epsilon-greedily. conf/algo/dqn.yaml
explains all options. These options add other algorithms to DQN:

- `double`: double DQN (van Hasselt et al. 2016, arXiv 1509.06461).
- `dueling` and `noisy`: dueling streams and noisy layers, see `drl_cli.networks.q_network`.
- `soft_temperature`: targets with the value and the entropy of a softmax policy (Haarnoja et al. 2017, arXiv
  1702.08165, eq. 3).
- `munchausen`: a bonus for likely actions of the softmax policy (Vieillard et al. 2020, arXiv 2007.14430, eq. 1).
- `rescale`: rescaled values h(Q), so that rewards need no clipping (R2D2, Kapturowski et al. 2019, section 2.3).
- `temperature`: Boltzmann exploration, which draws actions from softmax(values / temperature).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from drl_cli.algos.base import Batch
from drl_cli.algos.learner import LearnerConfig
from drl_cli.algos.value._q_learner import Draws, QLearner, Random, append_axes
from drl_cli.algos.value._q_policy import QPolicy
from drl_cli.errors import Refused
from drl_cli.losses import critics
from drl_cli.losses.policy import permitted
from drl_cli.losses.value import scaled_log_policy, softmax_policy
from drl_cli.networks.encoder import View
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import OR_NULL, Count, Fraction, NonNegative, Range

ACTIONS = ("discrete",)
TABLES = ("uniform", "prioritized", "sequences")
EXPLORATION = ("epsilon", "temperature")


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """The options of DQN, which conf/algo/dqn.yaml explains. Raise Refused if two options do not fit together."""

    double: bool
    loss: Literal["huber", "mse"]
    target_period: Count
    epsilon_start: Fraction
    epsilon_end: Fraction
    epsilon_steps: Annotated[Count, OR_NULL]
    epsilon_repeat: Count
    tau: Fraction
    dueling: bool
    noisy: bool
    soft_temperature: NonNegative
    munchausen: Fraction
    munchausen_floor: Annotated[float, Range(most=0)]
    temperature: NonNegative
    rescale: NonNegative

    def __post_init__(self) -> None:
        if self.munchausen and not self.soft_temperature:
            raise Refused("algo.munchausen needs a softmax policy; say algo.soft_temperature=0.03 (as in its paper)")
        if self.rescale and self.soft_temperature:
            raise Refused("algo.rescale: rescaled values don't fit the entropy of algo.soft_temperature; say 0 for one")

    @property
    def outputs(self) -> int:
        """How many numbers the network predicts for each action. DQN predicts 1 value."""
        return 1


class Policy(QPolicy):
    """Chooses the action with the largest Q value, or an action that explores."""


class Algorithm(QLearner):
    """Learns the Q network from batches, with the loss of DQN."""

    def loss(self, nets: Nets, rows: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        view = self.see(nets, rows)
        with torch.no_grad():
            target = self.target(nets, rows, view, draws)
        values = self.evaluate(nets, view.learned, draws.online)
        q = self.chosen_values(values, rows["action"])  # [N], or [N, K] for a distributional network
        loss, error = self.compare(q, target, rows.get("weight"), draws.online)
        q_mean = self.expected(self.distribution(q)).mean()
        return loss, {"q_loss": loss, "q_mean": q_mean, "td_error": error}

    def target(self, nets: Nets, rows: Batch, view: View, draws: Draws) -> Tensor:
        """Return the targets for the values of the batch's actions: reward + discount * value of the next state.

        The targets are `[N]`, or `[N, K]` for a distributional network. Without `soft_temperature`, the value of a
        state is the value of its best action. With `soft_temperature`, the value of a state is the mean value under the
        softmax policy, plus the temperature times the entropy of this policy. `munchausen` adds a bonus to the reward.
        """
        config, reward, discount = self.config, rows["reward"], rows["discount"]
        target_view = self.see_target(nets, rows, view)
        out = self.evaluate(nets.target, target_view.next_obs, draws.target)
        next_q = self.distribution(out)  # [N, A] or [N, A, K]
        # The mean returns `[N, A]` by which the next action is chosen. Double DQN takes those of the online network.
        means = self.means(nets, view.next_obs, draws.chooser) if config.double else self.expected(next_q)
        means = permitted(means, rows["mask_next"])
        if not config.soft_temperature:
            best_q = self.chosen_values(next_q, means.argmax(-1))
            return self.backed_up(reward, discount, best_q)
        temperature = config.soft_temperature
        probs, entropy = softmax_policy(means, temperature)
        reward = reward + discount * temperature * entropy  # `backed_up` adds the rest of the next state's value
        if config.munchausen:
            q_now = permitted(self.means(nets.target, target_view.obs, draws.target), rows["mask_now"])
            bonus = scaled_log_policy(q_now, rows["action"], temperature=temperature, floor=config.munchausen_floor)
            reward = reward + config.munchausen * bonus
        mean_q = (append_axes(probs, next_q) * next_q).sum(1)  # over the actions: [N] or [N, K]
        return self.backed_up(reward, discount, mean_q)

    def compare(self, q: Tensor, target: Tensor, weight: Tensor | None, random: Random) -> tuple[Tensor, Tensor]:
        """Return the mean loss (Huber, or half the squared error) and |TD error| `[N]` of the predictions `q` `[N]`.

        `target` `[N]` has their targets. `weight` `[N]` multiplies the loss of each row. `random` has the random
        numbers that computed `q`; only IQN reads them.
        """
        error = q - target
        if self.config.loss == "huber":
            return critics.huber(error, weight), error.abs()
        return 0.5 * critics.mse(error, weight), error.abs()
