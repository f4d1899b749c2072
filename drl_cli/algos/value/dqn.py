"""Deep Q-Network (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518).

DQN learns one Q network with a target network, and explores epsilon-greedily. It learns from n-step returns. These
options change the algorithm:

- `double`: The online network chooses the next action, and the target network evaluates this action (van Hasselt et al.
  2016, arXiv 1509.06461).
- `dueling` and `noisy`: The network has dueling streams or noisy layers, see `drl_cli.networks.q_network`.
- `soft_temperature`: The value of a state is its mean value under a softmax policy, plus the policy's entropy times
  this temperature (Haarnoja et al. 2017, arXiv 1702.08165, eq. 3). 0 switches this option off.
- `munchausen`: This factor times the scaled log-probability of the action under the softmax policy is added to the
  reward (Vieillard et al. 2020, arXiv 2007.14430, eq. 1). This option needs `soft_temperature`.
- `rescale`: The network learns rescaled values h(Q), so that rewards need no clipping (R2D2, Kapturowski et al. 2019,
  section 2.3). The option is the epsilon of h. It can't be combined with `soft_temperature`.
- `target_period` and `tau`: After every `target_period` updates, the target parameters move by the fraction `tau` of
  their distance to the online parameters. With `tau` = 1, the parameters are copied.
- `temperature`: Actions are drawn from softmax(values / temperature), which is called Boltzmann exploration.
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
from drl_cli.losses.value import backed_up, scaled_log_policy, softmax_policy
from drl_cli.networks.encoder import View
from drl_cli.optim.gradients import Nets
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Count, Fraction, NonNegative, Range

ACTIONS = ("discrete",)
TABLES = ("uniform", "prioritized", "sequences")
EXPLORATION = ("epsilon", "temperature")


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig):
    """The options of DQN, which the docstring of this module explains."""

    double: bool
    loss: Literal["huber", "mse"]
    target_period: Count
    epsilon_start: Fraction
    epsilon_end: Fraction
    epsilon_steps: Count
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
        return 1


class Policy(QPolicy):
    """Chooses the action with the largest Q value, or an action that explores."""


class Algorithm(QLearner):
    """Learns the Q network from batches, with the loss of DQN."""

    def loss(self, nets: Nets, rows: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        view = self.see(nets, rows)
        with torch.no_grad():
            target = self.target(nets, rows, view, draws)
        values = self.read(nets, view.learned, draws.online)
        q = self.of_action(values, rows["action"])  # [N], or [N, K] for a distributional network
        loss, error = self.compare(q, target, rows.get("weight"), draws.online)
        q_mean = self.expected(self.distribution(q)).mean()
        return loss, {"q_loss": loss, "q_mean": q_mean, "td_error": error}

    def target(self, nets: Nets, rows: Batch, view: View, draws: Draws) -> Tensor:
        """Return the targets for the values of the batch's actions: reward + discount * value of the next state.

        The targets are `[N]`, or `[N, K]` for a distributional network. Without `soft_temperature`, the value of a
        state is the value of its best action. With `soft_temperature`, the value of a state is the mean value under the
        softmax policy, plus the temperature times the entropy of this policy. `munchausen` adds a bonus to the reward.
        """
        config, reward, target_view = self.config, rows["reward"], self.see_target(nets, rows, view)
        next_q = self.distribution(self.read(nets.target, target_view.next_obs, draws.target))
        means = self.means(nets, view.next_obs, draws.chooser) if config.double else self.expected(next_q)
        means = permitted(means, rows["mask_next"])  # [N, A], the means by which the next action is chosen
        if not config.soft_temperature:
            best_q = self.of_action(next_q, means.argmax(-1))
            return self.backed_up(reward, rows["discount"], best_q)
        probs, entropy = softmax_policy(means, config.soft_temperature)
        reward = reward + rows["discount"] * config.soft_temperature * entropy
        if config.munchausen:
            q_now = permitted(self.means(nets.target, target_view.obs, draws.target), rows["mask_now"])
            bonus = scaled_log_policy(q_now, rows["action"], config.soft_temperature, config.munchausen_floor)
            reward = reward + config.munchausen * bonus
        mean_q = (append_axes(probs, next_q) * next_q).sum(1)
        return self.backed_up(reward, rows["discount"], mean_q)

    def backed_up(self, reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
        """Return reward + discount * next_q, `[N]` or `[N, K]` like `next_q`. `reward` and `discount` are `[N]`.

        With the option `rescale`, `next_q` and the result are rescaled values, see `drl_cli.losses.value.backed_up`.
        """
        reward, discount = append_axes(reward, next_q), append_axes(discount, next_q)
        target: Tensor = backed_up(reward, discount, next_q, self.config.rescale)
        return target

    def compare(self, q: Tensor, target: Tensor, weight: Tensor | None, random: Random) -> tuple[Tensor, Tensor]:
        """Return the mean loss and |TD error| `[N]` of the values `q` `[N]` of the batch's actions.

        `target` `[N]` has the targets of these values. `weight` `[N]` multiplies the loss of each row. Only IQN reads
        the random numbers `random`.
        """
        error = q - target
        if self.config.loss == "huber":
            return critics.huber(error, weight), error.abs()
        return 0.5 * critics.mse(error, weight), error.abs()
