"""REPPO (Voelcker et al. 2025, "Relative Entropy Pathwise Policy Optimization", arXiv 2507.11019).

REPPO learns Q(s, a) from rollouts, without a replay table. As in SAC, the policy improves along the gradient of Q with
respect to the action. A bound limits the KL divergence between the old and the new policy of an update. Two dual
variables are learned: alpha, the weight of the entropy, and beta, the weight of the KL divergence.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import drl_cli.api as drl
from drl_cli.algos.epochs import Epochs, Minibatches
from drl_cli.algos.off_policy._shared import check_support
from drl_cli.api import nn, torch
from drl_cli.losses.distributional import hl_gauss

ACTIONS = ("box",)
TABLES = ("fifo-once",)


@dataclass(frozen=True, kw_only=True)
class Config(drl.AlgoConfig):
    """The options of REPPO, which conf/algo/reppo.yaml explains. Raise Refused if the critic's support is wrong."""

    lr: drl.Positive
    n_step: Literal[1]
    epochs: drl.Count
    minibatch_size: drl.Count | None
    seq_len: drl.Count
    dual_lr: drl.Positive
    td_lambda: drl.Fraction
    initial_alpha: drl.Positive
    target_entropy: float | None
    initial_beta: drl.Positive
    kl_bound: drl.Positive
    prediction_coef: drl.NonNegative
    atoms: drl.Count
    v_min: float
    v_max: float

    def __post_init__(self) -> None:
        check_support(self.atoms, self.v_min, self.v_max)


class PredictiveCritic(nn.Module):
    """REPPO's critic, which maps features `[B, F]` and actions `[B, A]` to logits `[B, K]` of K values of the return.

    An Embedding with the hidden layers of `network` first computes an embedding `[B, Z]`. Z is the width of the last
    hidden layer. The head computes the logits from the embedding, at first almost 0. The predictor predicts the
    embedding of the next step, `[B, Z]`. Head and predictor have one hidden layer each. `features` is F, `actions` is
    A, and `outputs` is K.
    """

    def __init__(self, network: drl.NetworkConfig, features: int, actions: int, outputs: int) -> None:
        super().__init__()
        *_, width = network.hidden
        self.encoder = drl.Embedding(features + actions, width, network)
        one_layer = replace(network, hidden=(width,))
        self.head = drl.MLP(width, outputs, one_layer, last=0.01)
        self.predictor = drl.MLP(width, width, one_layer)

    @property
    def dropout_size(self) -> int:
        """The number of hidden units of all three MLPs. `masks` needs a random number for each of them in each row."""
        return self.encoder.dropout_size + self.head.dropout_size + self.predictor.dropout_size

    def masks(self, uniform: torch.Tensor, rate: float) -> list[torch.Tensor]:
        """Return a dropout mask `[1, B, width]` for each hidden layer. `forward` takes them as an argument.

        `uniform` `[B, dropout_size]` has random numbers in [0, 1). `rate` is the probability that a unit is dropped.
        """
        sizes = [mlp.dropout_size for mlp in (self.encoder, self.head, self.predictor)]
        of_encoder, of_head, of_predictor = torch.split(uniform, sizes, 1)
        masks = self.encoder.masks(of_encoder, rate)
        return masks + self.head.masks(of_head, rate) + self.predictor.masks(of_predictor, rate)

    def forward(
        self, features: torch.Tensor, action: torch.Tensor, masks: Sequence[torch.Tensor] = ()
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits, embedding and predicted next embedding.

        `masks` `[1, B, width]` each, from the method `masks`, multiply the outputs of the hidden layers.
        """
        # Head and predictor have one hidden layer each. Without dropout, all three are empty.
        of_encoder, of_head, of_predictor = masks[:-2], masks[-2:-1], masks[-1:]
        embedding = self.encoder(torch.cat([features, action], -1), of_encoder)
        logits = self.head(embedding, of_head)
        return logits, embedding, self.predictor(embedding, of_predictor)


def networks(config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec) -> dict[str, Any]:
    """Return the networks by name. Only the loss of the critic trains the encoder."""
    encoder, size = drl.encoder(network, spec), spec.action.size
    return {
        "encoder": encoder,
        "actor": drl.MLP(encoder.size, 2 * size, network, last=0.01),
        "critic": PredictiveCritic(network, encoder.size, size, config.atoms),
        "log_alpha": drl.Scalar(math.log(config.initial_alpha)),
        "log_beta": drl.Scalar(math.log(config.initial_beta)),
    }


def policy(nets: Any, obs: Any, explore: Mapping[str, Any]) -> drl.TanhGaussian:
    return drl.TanhGaussian.of(nets.actor(nets.encoder(obs)))


class Algorithm(drl.Algorithm):
    """Learns the actor, the critic and both dual variables from rollouts (algorithm 1)."""

    policy_parts = ("encoder", "actor")
    rates = {"log_alpha": "dual_lr", "log_beta": "dual_lr"}
    has_own_weights = is_one_step = False

    def __init__(self, config: Any, network: drl.NetworkConfig, spec: drl.EnvSpec, seed: int, context: drl.Context):
        super().__init__(config, network, spec, seed, context)
        self.support = torch.linspace(config.v_min, config.v_max, config.atoms, device=context.device)
        self.minibatches = Minibatches(self, self.loss, shuffle=2)

    def part(self, name: str) -> drl.Part:
        """Return the learning rate of a network. The gradient of each network is clipped alone."""
        is_dual = name in self.rates
        return replace(super().part(name), max_norm=None if is_dual else self.context.optimizer.max_norm)

    def mean_of(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the means `[N]` of distributions of the return, given their logits `[N, atoms]`."""
        value: torch.Tensor = logits.softmax(-1) @ self.support
        return value

    def loss(
        self, nets: Any, x: torch.Tensor, rows: drl.Batch, masks: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, drl.Metrics]:
        """Return the loss of a minibatch, and metrics. `x` `[M, F]` are features, `masks` are for dropout."""
        config, weight, mean = self.config, rows.get("weight"), drl.losses.mean

        # critic: the cross-entropy with the targets, and the squared error of the predicted next embedding
        logits, _, predicted = nets.critic(x, rows["action"], masks)
        target_probs = hl_gauss(rows["target"], self.support)
        critic_loss = -mean((target_probs * logits.log_softmax(-1)).sum(-1), weight)
        error = (predicted - rows["next_embedding"]).square().mean(-1)
        has_next = (~rows["terminated"]).float()
        prediction_loss = mean(error * has_next, weight)  # no action follows the end of an episode

        # actor: alpha log pi(a|s) - Q(s, a) if the KL divergence from the old policy is within its bound, else beta KL
        x = x.detach()  # so that the actor does not train the encoder
        pi, old = drl.TanhGaussian.of(nets.actor(x)), drl.TanhGaussian.of(rows["old"])
        action, log_prob = pi.sample_log_prob(rows["noise"])
        alpha, beta = nets.log_alpha().exp(), nets.log_beta().exp()
        q = self.mean_of(nets.frozen.critic(x, action, masks)[0])  # the actor does not train the critic
        kl = old.kl(pi)
        is_near = kl < config.kl_bound
        actor_loss = mean(torch.where(is_near, alpha.detach() * log_prob - q, beta.detach() * kl), weight)

        # duals: alpha grows while the entropy is below its target, and beta while the KL divergence is above its bound
        entropy, mean_kl = -mean(log_prob.detach(), weight), mean(kl.detach(), weight)
        wanted = -0.5 * self.spec.action.size if config.target_entropy is None else config.target_entropy
        dual_loss = alpha * (entropy - wanted) - beta * (mean_kl - config.kl_bound)
        metrics = {"critic_loss": critic_loss, "prediction_loss": prediction_loss, "actor_loss": actor_loss}
        metrics |= {"q_mean": mean(self.mean_of(logits.detach()), weight), "entropy": entropy, "kl": mean_kl}
        metrics |= {"alpha": alpha, "beta": beta, "near": mean(is_near.float(), weight)}
        return critic_loss + config.prediction_coef * prediction_loss + actor_loss + dual_loss, metrics

    def update(self, batch: drl.Batch, counts: drl.Counts) -> drl.Update:
        nets, size, rollout = self.nets, self.spec.action.size, self.minibatches.rollout(batch)
        rows, epochs = rollout.rows, Epochs(self.minibatches, rollout)

        # targets: G = r + d ((1 - lambda) Q(s', a') + lambda G' - alpha log pi(a'|s')) with a' from pi(s'). G' is the
        # return of the next step, or Q(s', a') at a cut.
        with torch.no_grad():
            x, next_x = rollout.features()
            (noise,) = self.randn(rollout.num, size)
            next_action, log_prob = drl.TanhGaussian.of(nets.actor(next_x)).sample_log_prob(noise)
            logits, rows["next_embedding"], _ = nets.critic(next_x, next_action)
            reward = batch["reward"] - batch["discount"] * (nets.log_alpha().exp() * log_prob)
            steps = (reward, batch["discount"], self.mean_of(logits), batch["cut"])
            rows["target"] = drl.losses.lambda_returns(*steps, self.config.td_lambda)
            rows["old"], rows["terminated"] = nets.actor(x), batch["terminated"]

        for _ in range(self.config.epochs):
            (rows["noise"],) = self.randn(rollout.num, size)
            epochs.run()  # a gradient step with each minibatch
        return epochs.update({})
