"""Gradients: computes the gradients of a loss function. With trainer.compile=true, compiled code computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from drl_cli.chains.present import untaped
from drl_cli.optim.context import Context
from drl_cli.optim.modules import trained, views
from drl_cli.optim.params import Params
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import nn

Tensors: TypeAlias = Mapping[str, Tensor]
_Buffers: TypeAlias = tuple[Mapping[str, Tensors], Mapping[str, Tensors]]  # of parts, and of target networks
Loss: TypeAlias = Callable[["Nets", Any, Any], tuple[Tensor, Tensors]]  # (nets, batch, noise) -> (loss, metrics)


class Nets:
    """The networks and tensors that a loss function uses, as attributes with the names given to `Params`.

    After `Params(context, critic=Critic(), log_alpha=1)`:

    - `nets.critic(obs, action)` calls the module. An unknown name raises AttributeError.
    - `nets.log_alpha` is a tensor of parameters, here `[1]`.
    - `nets.frozen.critic` and `nets.frozen.log_alpha` have the same values, but get no gradient.
    - `nets.target.critic` is the target network, if the algorithm has called `params.target("critic")`.
    """

    frozen: Nets
    target: Nets

    def __init__(self, parts: Mapping[str, Any]) -> None:  # Any: a callable, or a tensor
        for name, part in parts.items():  # torch.compile of torch 2.11 cannot follow vars(self).update
            setattr(self, name, part)

    def __getattr__(self, name: str) -> Any:  # only called for a missing name; with it, mypy accepts all names
        raise AttributeError(f"there is no part '{name}' here; there are {', '.join(vars(self))}")


class _Targets(Nets):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{name}' has no target network: call params.target('{name}') in the constructor")


class Gradients:
    """Computes the gradients of one loss function with respect to the parameters of some parts (default: all parts).

    A part is a module or a tensor in `params`. A call writes the gradients of these parts into `params.grad`:

        def loss(self, nets, batch, noise):
            q = nets.critic(batch["obs"], batch["action"])
            critic_loss = (q - batch["reward"]).square().mean()
            actor_loss = -nets.frozen.critic(batch["obs"], nets.actor(batch["obs"])).mean()
            return critic_loss + actor_loss, {"critic_loss": critic_loss}

        self.gradients = Gradients(self.params, self.loss, context)
        ...
        loss, metrics = self.gradients(batch, noise)
        self.optimizer.step(loss, parts=self.gradients.parts)

    `noise` has all random numbers that the loss function uses. With trainer.compile=true, torch compiles the loss and
    its gradients into one graph. The loss function may then only compute with tensors and may not draw random numbers.
    It may call a module in `params`, but no submodule. If torch cannot put the loss function into one graph, a call
    raises Refused and names the line. The constructor raises LookupError if there is no such part.
    """

    def __init__(self, params: Params, loss: Loss, context: Context, *parts: str) -> None:
        self.params, self.loss = params, loss
        self.parts = parts or tuple(params.slices)
        self._others = [name for name in params.slices if name not in self.parts]
        for name in self.parts:
            params[name]  # raises LookupError if there is no such part
        self._compiled = context.compiled(self._one_graph) if context.compiles else None
        self._nets: Nets | None = None

    def __call__(self, batch: Any, noise: Any = None) -> tuple[Tensor, Tensors]:  # Any: tensors in any containers
        """Write the gradients into `params.grad`; return the loss and the metrics, detached from autograd's graph."""
        with torch.enable_grad():
            loss, metrics = self._eager(batch, noise) if self._compiled is None else self._in_one_graph(batch, noise)
        return loss.detach(), {name: metric.detach() for name, metric in metrics.items()}

    def _eager(self, batch: Any, noise: Any) -> tuple[Tensor, Tensors]:
        """Call the loss function with the modules themselves, and write the gradients that autograd computes."""
        if self._nets is None:  # not in the constructor, because the algorithm may make its target networks later
            with untaped():  # a record of this update may not repeat these operations
                self._nets = _modules(self.params)
        self.params.collect()
        loss, metrics = self.loss(self._nets, batch, noise)
        self.params.differentiate(loss, self.parts)
        return loss, metrics

    def _in_one_graph(self, batch: Any, noise: Any) -> tuple[Tensor, Tensors]:
        """Call the compiled function, and copy the gradients that it returns into `params.grad`."""
        assert self._compiled is not None
        if isinstance(batch, Mapping):
            batch = dict(batch)  # torch.compile needs a plain dict of tensors
        params = self.params
        learned = [params[name].flat for name in self.parts]
        others = [params[name].flat for name in self._others]
        targets = {name: target.flat for name, target in params.targets.items()}
        grads, loss, metrics = self._compiled(learned, others, targets, _buffers(params), (batch, noise))
        for name, grad in zip(self.parts, grads, strict=True):
            params[name].grad.copy_(grad)
        if params.context.has_graphs:  # the next call writes its results into the same memory
            return loss.clone(), {name: metric.clone() for name, metric in metrics.items()}
        return loss, metrics

    def _one_graph(
        self, learned: Sequence[Tensor], others: Sequence[Tensor], targets: Tensors, buffers: _Buffers, inputs: Any
    ) -> tuple[Sequence[Tensor], Tensor, Tensors]:
        """Return the gradients, the loss and the metrics. torch.compile compiles this method.

        `learned` has the parameters `[size]` of each part that gets a gradient. The gradients have the same shapes.
        `others` and `targets` have the parameters of the other parts and of the target networks. `buffers` is what
        `_buffers` returns, and `inputs` is (batch, noise).
        """

        def loss_of(learned: Sequence[Tensor], buffers: _Buffers) -> tuple[Tensor, Tensors]:
            flats = dict(zip((*self.parts, *self._others), (*learned, *others), strict=True))
            nets = _functional(self.params, flats, targets, buffers)
            return self.loss(nets, *inputs)

        # The buffers are an argument, because torch.func forbids changes of other tensors, such as a running mean.
        grads, (loss, metrics) = torch.func.grad_and_value(loss_of, has_aux=True)(learned, buffers)
        return grads, loss, metrics


def _modules(params: Params) -> Nets:
    """Return the Nets that `_eager` passes to the loss function: the modules and tensors of `params` themselves."""
    modules = params.modules
    values = {name: params.value(name) for name in params.slices if name not in modules}
    frozen = {name: params.frozen(name) for name in modules} | {name: value.detach() for name, value in values.items()}
    targets = {name: target.flat if target.module is None else target.module for name, target in params.targets.items()}
    return Nets({**modules, **values, "frozen": Nets(frozen), "target": _Targets(targets)})


def _buffers(params: Params) -> _Buffers:
    """Return two dicts {part: {name: tensor}}: the buffers of the modules, and the buffers of the target networks."""
    target_modules = {name: target.module for name, target in params.targets.items() if target.module is not None}
    of_parts = {name: dict(module.named_buffers()) for name, module in params.modules.items()}
    of_targets = {name: dict(module.named_buffers()) for name, module in target_modules.items()}
    return of_parts, of_targets


def _functional(params: Params, flats: Tensors, targets: Tensors, buffers: _Buffers) -> Nets:
    """Return the Nets that `_one_graph` passes to the loss function, made from the given tensors.

    A part with a module becomes a function that calls the module with these tensors. Another part is its tensor.
    `flats` and `targets` have the parameters `[size]` of each part and of each target network. `buffers` is what
    `_buffers` returns.
    """

    def bound(name: str, module: nn.Module | None, flat: Tensor, named_buffers: Mapping[str, Tensors]) -> Any:
        """Return `flat` if `module` is None, or else a function that calls `module` with `flat` and its buffers."""
        if module is None:
            return flat
        trained_module = params.modules[name]  # in a target network, no parameter counts as trained
        names = [key for key, _ in trained(trained_module)]
        (parameters,) = views(trained_module, flat)
        tensors = dict(zip(names, parameters, strict=True)) | dict(named_buffers[name])

        def call(*args: Any, **options: Any) -> Any:  # Any: the module's arguments and result
            return torch.func.functional_call(module, tensors, args, options)

        return call

    of_parts, of_targets = buffers
    live = {name: bound(name, params.modules.get(name), flat, of_parts) for name, flat in flats.items()}
    frozen = {name: bound(name, params.modules.get(name), flat.detach(), of_parts) for name, flat in flats.items()}
    target = {name: bound(name, params.targets[name].module, flat, of_targets) for name, flat in targets.items()}
    return Nets({**live, "frozen": Nets(frozen), "target": _Targets(target)})
