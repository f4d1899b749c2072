"""LaProp with adaptive gradient clipping: the optimizer of DreamerV3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drl_cli.optim.modules import load_tensors, views
from drl_cli.optim.optimizer_config import OptimizerConfig, Part
from drl_cli.optim.params import Params
from drl_cli.utils.lazy import Tensor, torch

BETAS = (0.9, 0.999)
"""LaProp's default betas: of the momentum, and of the mean squared gradient."""
LEAST_NORM = 1e-3
"""A tensor with a smaller norm is clipped as if it had this norm. Otherwise, a tensor of zeros would never change."""


class LaProp:
    """LaProp (Ziyin et al. 2020, arXiv 2002.04839, algorithm 1), after adaptive gradient clipping.

    A step divides the gradient by the root of its mean square first, and then takes the momentum. Adam takes the
    momentum first. Before, the gradient of each weight and each bias is clipped to `clip` times the norm of this weight
    or bias (AGC, Brock et al. 2021, arXiv 2102.06171, eq. 3, with one unit per tensor).

    `optimizer.kwargs` may set `betas`, `eps` and `clip`. Weight decay is decoupled, as in AdamW.
    """

    is_plain = True

    def __init__(self, params: Params, parts: Mapping[str, Part], config: OptimizerConfig) -> None:
        self.params, self.parts = params, parts
        self.eps, self.clip = config.kwargs.get("eps", 1e-20), config.kwargs.get("clip", 0.3)
        self.mean, self.square = torch.zeros_like(params.flat), torch.zeros_like(params.flat)
        self.count = torch.zeros(len(parts), device=params.device)  # number of steps of each part
        self.index = {name: index for index, name in enumerate(parts)}

    def step(self, names: Sequence[str], factor: float | Tensor) -> None:
        for name in names:
            part, where, options = self.params[name], self.params.slices[name], self.parts[name]
            if not len(part.flat):
                continue
            count = self.count[self.index[name]]
            count += 1
            if self.clip:
                self._clip(name, part.flat, part.grad)
            beta1, beta2 = options.betas or BETAS
            mean, square, lr = self.mean[where], self.square[where], options.lr * factor
            steps = count.double()  # in float32, 1 - 0.999 would have only four correct digits
            square.mul_(beta2).addcmul_(part.grad, part.grad, value=1.0 - beta2)
            scale = (1.0 - beta2**steps).rsqrt().float()  # corrects the bias of `square`
            root = square.sqrt().mul_(scale).add_(self.eps)
            mean.mul_(beta1).addcdiv_(part.grad, root, value=1.0 - beta1)
            step_size = (lr / (1.0 - beta1**steps)).float()
            if options.weight_decay:
                part.flat.mul_(1.0 - lr * options.weight_decay)
            part.flat.addcmul_(mean, -step_size)

    def _clip(self, name: str, flat: Tensor, grad: Tensor) -> None:
        """Clip the gradient of each tensor of the part `name` in place."""
        if name not in self.params.modules:
            tensors, grads = [flat], [grad]
        else:
            tensors, grads = views(self.params.modules[name], flat, grad)
        for tensor, gradient in zip(tensors, grads, strict=True):
            limit = self.clip * torch.linalg.vector_norm(tensor).clamp(min=LEAST_NORM)
            gradient /= (torch.linalg.vector_norm(gradient) / limit).clamp(min=1.0)

    def state(self) -> dict[str, Tensor]:
        return {"optimizer.mean": self.mean, "optimizer.square": self.square, "optimizer.count": self.count}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        load_tensors(self.state(), state)
