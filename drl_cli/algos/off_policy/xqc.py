"""XQC (Palenicek et al. 2025, "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning").

The paper is arXiv 2509.25174. XQC is SAC whose critics have batch norm, weights of norm 1, and a categorical
distribution of the return as output. As in CrossQ, the critics evaluate (s, a) and (s', a') in one joined batch. Unlike
CrossQ, XQC has target networks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import drl_cli.api as drl
from drl_cli.algos.off_policy import sac
from drl_cli.algos.off_policy._shared import check_batch_norm, check_one_trainer, check_support
from drl_cli.algos.off_policy.sac import policy
from drl_cli.api import nn, torch
from drl_cli.networks.batch_renorm import BatchRenorm, linear
from drl_cli.optim.products import Products

ACTIONS = ("box",)
check = check_batch_norm
__all__ = ["Algorithm", "Config", "check", "networks", "policy"]


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of XQC: those of SAC, the `momentum` of batch norm, and the critics' support.

    The support consists of `atoms` equally spaced returns from `v_min` to `v_max`.
    """

    lr: drl.Positive
    alpha_lr: drl.Positive
    tau: drl.Fraction
    initial_alpha: drl.Positive
    target_entropy: float | None
    actor_period: drl.Count
    momentum: drl.Fraction
    atoms: drl.Count
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


FOREVER = 2**62
"""A `warm_up` that never ends. With it, BatchRenorm is batch norm."""


class CategoricalCritics(nn.Module):
    """N critics, which map features `[B, F]` and actions `[B, A]` to logits `[N, B, K]` of K values of the return.

    `inputs` is F + A, `ensemble` is N, and `outputs` is K. Batch norm normalises the inputs, and the outputs of hidden
    layers before the activation. The incoming weights of every unit have norm 1 at first and after each call of
    `scale_to_unit_norm`. Hidden layers have no bias, and the bias of the inputs' batch norm stays 0, because the next
    batch norm would cancel it. BatchRenorm describes `momentum` and `batch_statistics`.
    """

    products = Products()  # Params replaces this object, see `drl.MLP`

    def __init__(self, network: Any, inputs: int, *, ensemble: int, momentum: float, outputs: int) -> None:
        super().__init__()
        self.activation = getattr(nn.functional, network.activation)
        widths = (inputs, *network.hidden)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(ensemble, *pair)) for pair in pairwise((*widths, outputs))
        )
        self.bias = nn.Parameter(torch.zeros(ensemble, outputs))
        self.norms = nn.ModuleList(BatchRenorm(ensemble, width, momentum=momentum, warm_up=FOREVER) for width in widths)
        self.norms[0].bias.requires_grad_(False)  # its gradient would be a rounding error, which Adam would scale up
        self.scale_to_unit_norm()

    def scale_to_unit_norm(self) -> None:
        """Scale the incoming weights of every hidden and output unit to norm 1."""
        with torch.no_grad():
            for weight in self.weights:
                weight.copy_(nn.functional.normalize(weight, dim=1))  # [N, in, out]

    def forward(self, features: torch.Tensor, action: torch.Tensor, *, batch_statistics: bool = False) -> torch.Tensor:
        x = torch.cat([features, action], -1)
        ensemble = len(self.bias)
        norm_of_inputs, *norms_of_hidden = self.norms
        h = norm_of_inputs(x.expand(ensemble, *x.shape), batch_statistics=batch_statistics)  # [N, B, F + A]
        *hidden_weights, last_weight = self.weights
        for weight, norm in zip(hidden_weights, norms_of_hidden, strict=True):
            zeros = torch.zeros_like(weight[:, 0])  # [N, out], in place of the bias that `linear` needs
            h = self.activation(norm(linear(self.products, h, weight, zeros), batch_statistics=batch_statistics))
        return linear(self.products, h, last_weight, self.bias)


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return SAC's networks with categorical critics, which draw their weights first."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    options = {"momentum": config.momentum, "outputs": config.atoms}
    critic = CategoricalCritics(network, encoder.size + size, ensemble=2, **options)
    actor = drl.MLP(encoder.size, 2 * size, network)
    log_alpha = drl.Scalar(math.log(config.initial_alpha))
    return {"encoder": encoder, "actor": actor, "critic": critic, "log_alpha": log_alpha}


class Algorithm(sac.Algorithm):
    """Learns the critics and, after their step, the actor and the temperature."""

    has_own_weights = False

    def __init__(self, config: Any, network: Any, spec: drl.EnvSpec, seed: int, context: drl.Context) -> None:
        check_one_trainer(config.name, context)
        if config.target_entropy is None:
            config = replace(config, target_entropy=-0.5 * spec.action.size)
        super().__init__(config, network, spec, seed, context)
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=context.device)

    def value(self, x: torch.Tensor, action: torch.Tensor, masks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the smaller mean return of the two critics, `[B]`. Batch norm uses its running statistics."""
        probs = self.nets.frozen.critic(x, action).softmax(-1)  # [2, B, K]
        value: torch.Tensor = (probs @ self.support).amin(0)
        return value

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, rows, seen, support = self.nets, self.rows(batch), self.nets.encoder.see(batch), self.support
        num, x, is_actors = len(rows["reward"]), seen.obs, counts.opt_steps % self.config.actor_period == 0
        # All random numbers are drawn before the first step, as in CrossQ.
        noises = [self.randn(num, self.spec.action.size)[0] for _ in range(2 if is_actors else 1)]

        # The target critics evaluate (s, a) and (s', a') in one forward pass, with the statistics of this batch. The
        # target comes from the critic whose mean return is smaller.
        with torch.no_grad():
            next_action, log_prob = drl.TanhGaussian.of(nets.actor(seen.next_obs)).sample_log_prob(noises[0])
            cost, actions = nets.log_alpha().exp() * log_prob, torch.cat([rows["action"], next_action])
            slow = nets.target.encoder.see(batch)
            next_logits = nets.target.critic(torch.cat([slow.obs, slow.next_obs]), actions, batch_statistics=True)
            target = smaller(next_logits[:, num:].softmax(-1), support)
            target = drl.losses.project(target, rows["reward"] - rows["discount"] * cost, rows["discount"], support)

        # The critics evaluate the same batch. Their weights keep norm 1.
        logits = nets.critic(torch.cat([seen.learned, seen.next_obs]), actions, batch_statistics=True)[:, :num]
        losses = [drl.losses.categorical_critic(own, target, rows.get("weight")) for own in logits]  # of [2, B, K]
        critic_loss = torch.stack(losses).sum()
        self.optimizer.minimize(critic_loss, "encoder", "critic")
        nets.critic.scale_to_unit_norm()
        self.params.follow(self.config.tau)
        metrics = {"critic_loss": critic_loss, "q_mean": (logits.detach().softmax(-1) @ support).mean()}

        if is_actors:
            loss, more = self.actor_loss(rows, x, noises[1], ())
            self.optimizer.minimize(loss, "actor", "log_alpha")
            metrics |= more
        error = drl.losses.divergence(logits.detach(), target).mean(0)
        return drl.Update(metrics, self.per_sequence(error, batch))


def smaller(probs: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Return the probabilities `[B, K]` of the critic with the smaller mean return, in each row of `[2, B, K]`."""
    chosen = (probs @ support).argmin(0)  # [B]
    return probs[chosen, torch.arange(len(chosen), device=chosen.device)]
