"""V-MPO (Song et al. 2019, "On-Policy Maximum a Posteriori Policy Optimization", arXiv 1909.12238).

V-MPO fits the policy to the better half of a rollout's actions, weighted by exp(advantage / temperature) (E-step),
within a trust region around the policy at the start of the update (M-step). The temperature and the weights of the
trust regions are dual variables. A Gaussian has separate trust regions for its mean and its standard deviation.
"""

from dataclasses import dataclass

from drl_cli.algos.base import Batch
from drl_cli.algos.learner import Head
from drl_cli.algos.on_policy.actor import Policy as Policy
from drl_cli.algos.on_policy.actor_critic import ActorCritic, ActorCriticConfig
from drl_cli.algos.rollout import EncodedRollouts
from drl_cli.types import EnvSpec
from drl_cli.utils.lazy import Tensor, torch
from drl_cli.utils.ranges import Positive

ACTIONS = ("box", "discrete", "multidiscrete")
TABLES = ("fifo-once",)
REWARDS = True


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Options of V-MPO."""

    dual_lr: Positive
    temperature_start: Positive
    alpha_start: Positive
    epsilon_temperature: Positive
    epsilon_kl: Positive
    epsilon_std: Positive


class Algorithm(ActorCritic):
    """Learns actor, critic and the dual variables in a trainer."""

    config: Config

    def setup(self, config: Config, spec: EnvSpec) -> None:
        self.lrs = dict.fromkeys(("temperature", "alpha"), config.dual_lr)
        super().setup(config, spec)
        starts = {"temperature": config.temperature_start, "alpha": config.alpha_start}
        for name, start in starts.items():  # the dual variables are the softplus of these values
            self.params[name].flat.copy_(torch.tensor(start).expm1().log())

    def extra_parts(self, config: Config) -> dict[str, Head | int]:
        return {"temperature": 1, "alpha": 2 if self.action.kind == "box" else 1}

    def remember(self, rollout: EncodedRollouts, features: Tensor, value: Tensor) -> None:
        """Make the trainer's policy the centre of the trust region."""
        rollout.rows.update(self.outputs(self.actor.forward(features)[0][0]))

    def before_epoch(self, rollout: EncodedRollouts) -> None:
        """Write the rows' weights psi into the column `psi`, and the temperature's gradient (E-step, eq. 3 and 4).

        The better half of the rows of all trainers have weights, whose mean over all rows is 1.
        """
        advantage, group = rollout.rows["advantage"], self.context.group
        of_all = group.gather(advantage)
        best = of_all.topk(max(1, len(of_all) // 2)).values
        value = self.params["temperature"].flat
        temperature = torch.nn.functional.softplus(value)
        scaled = best / temperature
        log_sum = scaled.logsumexp(0)
        psi = (advantage / temperature - log_sum).exp() * len(of_all)
        rollout.rows["psi"] = torch.where(advantage >= best[-1], psi, 0.0)
        # d/dt of t (epsilon + log mean exp(A / t)), and of t's softplus
        log_mean = log_sum - torch.tensor(float(len(best))).log()
        slope = self.config.epsilon_temperature + log_mean - (scaled.softmax(0) * scaled).sum()
        self.d_temperature = slope * value.sigmoid()

    def policy_gradients(self, out: Tensor, rows: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return metrics, and d loss/d out of the weighted likelihood and trust regions. Write the duals' gradients."""
        config, share = self.config, rows.get("valid_weight")
        share = torch.ones_like(rows["psi"]) if share is None else share
        log_prob, entropy = self.log_prob(out, rows)
        psi = share * rows["psi"]
        d_out = self.log_prob_backward(out, rows, -psi / len(out), torch.zeros_like(psi))
        kl = self.kl(out, rows)
        raw = self.params["alpha"].flat
        alpha = torch.nn.functional.softplus(raw)
        d_out = d_out + self.kl_backward(out, rows, alpha[:, None] * share / len(out))
        mean_kl = (share * kl).mean(-1)
        bounds = torch.tensor((config.epsilon_kl, config.epsilon_std), device=kl.device)[: len(kl)]
        self.params["alpha"].grad.copy_((bounds - mean_kl) * raw.sigmoid())
        self.params["temperature"].grad.copy_(self.d_temperature)
        names = ("kl", "kl_std")[: len(kl)]
        metrics = {"policy_loss": -(psi * log_prob).mean(), "entropy": (share * entropy).mean()}
        metrics |= dict(zip(names, mean_kl.unbind(), strict=True)) | {"alpha": alpha.mean()}
        return metrics | {"temperature": torch.nn.functional.softplus(self.params["temperature"].flat).mean()}, d_out
