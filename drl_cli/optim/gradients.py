"""Gradients: compute the gradient of one loss function, with trainer.compile=true in one compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from drl_cli.chains import untaped
from drl_cli.optim.context import Context
from drl_cli.optim.modules import trained, views
from drl_cli.optim.params import Params
from drl_cli.utils.lazy import Tensor, torch

if TYPE_CHECKING:
    from torch import nn

Tensors: TypeAlias = Mapping[str, Tensor]
_Buffers: TypeAlias = tuple[Mapping[str, Tensors], Mapping[str, Tensors]]
Loss: TypeAlias = Callable[["Nets", Any, Any], tuple[Tensor, Tensors]]


class Nets:
    """The networks and values that a loss function uses, as attributes with the names of the parts.

    `nets.critic(obs, action)` evaluates a module, and `nets.log_alpha` is the tensor `[size]` of a part without a
    module. `nets.frozen` has the same networks and values, but no gradient reaches their parameters.
    `nets.target.critic` is the target network of `critic`, if the algorithm has made one.
    """

    frozen: Nets
    target: Nets

    def __init__(self, parts: Mapping[str, Any]) -> None:  # Any: a callable, or a tensor
        for name, part in parts.items():  # torch.compile of torch 2.11 cannot follow vars(self).update
            setattr(self, name, part)

    def __getattr__(self, name: str) -> Any:  # so that mypy accepts the name of any part
        raise AttributeError(f"there is no part '{name}' here; there are {', '.join(vars(self))}")


class _Targets(Nets):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{name}' has no target network: call params.target('{name}') in the constructor")


class Gradients:
    """Computes the gradients of one loss function with respect to some parts of `params` (default: all parts).

        def loss(self, nets, batch, noise):
            q = nets.critic(batch["obs"], batch["action"])
            critic_loss = (q - batch["reward"]).square().mean()
            actor_loss = -nets.frozen.critic(batch["obs"], nets.actor(batch["obs"])).mean()
            return critic_loss + actor_loss, {"critic_loss": critic_loss}

        self.gradients = Gradients(self.params, self.loss, context)
        ...
        loss, metrics = self.gradients(batch, noise)
        self.optimizer.step(loss, parts=self.gradients.parts)

    `noise` contains everything random, because with trainer.compile=true a loss function may only compute with tensors.
    Then the loss and its gradients are one compiled graph. In the graph, the loss function can call a part, but not the
    part's submodules. Raise Refused, with the line, if torch can't put the whole loss function into one graph.
    """

    def __init__(self, params: Params, loss: Loss, context: Context, *parts: str) -> None:
        self.params, self.loss = params, loss
        self.parts = parts or tuple(params.slices)
        self._others = [name for name in params.slices if name not in self.parts]
        for name in self.parts:
            params[name]  # raises LookupError for a misspelt part
        self._compiled = context.compiled(self._one_graph) if context.compiles else None
        self._nets: Nets | None = None

    def __call__(self, batch: Any, noise: Any = None) -> tuple[Tensor, Tensors]:  # Any: tensors in any containers
        """Write the gradients into `params.grad`, and return the loss and the metrics without their graph."""
        with torch.enable_grad():
            loss, metrics = self._eager(batch, noise) if self._compiled is None else self._in_one_graph(batch, noise)
        return loss.detach(), {name: metric.detach() for name, metric in metrics.items()}

    def _eager(self, batch: Any, noise: Any) -> tuple[Tensor, Tensors]:
        if self._nets is None:  # not in the constructor, because the algorithm may make its target networks later
            with untaped():
                self._nets = _modules(self.params)
        self.params.collect()
        loss, metrics = self.loss(self._nets, batch, noise)
        leaves = self.params.leaves(self.parts)
        for leaf, grad in zip(leaves, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
            assert leaf.grad is not None  # a view of params.grad, see Params.collect
            leaf.grad.zero_() if grad is None else leaf.grad.copy_(grad)
        return loss, metrics

    def _in_one_graph(self, batch: Any, noise: Any) -> tuple[Tensor, Tensors]:
        assert self._compiled is not None
        if isinstance(batch, Mapping):
            batch = dict(batch)  # a graph's inputs are tensors
        params = self.params
        learned, others = ([params[name].flat for name in names] for names in (self.parts, self._others))
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
        def loss_of(learned: Sequence[Tensor], buffers: _Buffers) -> tuple[Tensor, Tensors]:
            flats = dict(zip((*self.parts, *self._others), (*learned, *others), strict=True))
            return self.loss(_functional(self.params, flats, targets, buffers), *inputs)

        # torch.func lets a function change tensors in place, such as running means, only if they are arguments.
        grads, (loss, metrics) = torch.func.grad_and_value(loss_of, has_aux=True)(learned, buffers)
        return grads, loss, metrics


def _modules(params: Params) -> Nets:
    """Return the modules themselves, frozen copies that share their memory, and the target modules."""
    modules, values = params.modules, {name: params.value(name) for name in params.slices if name not in params.modules}
    frozen = {name: params.frozen(name) for name in modules} | {name: value.detach() for name, value in values.items()}
    targets = {name: target.flat if target.module is None else target.module for name, target in params.targets.items()}
    return Nets({**modules, **values, "frozen": Nets(frozen), "target": _Targets(targets)})


def _buffers(params: Params) -> _Buffers:
    """Return the buffers of every module and of every target network, by the name of the part."""
    targets = {name: target.module for name, target in params.targets.items() if target.module is not None}
    live, target = (
        {name: dict(module.named_buffers()) for name, module in modules.items()}
        for modules in (params.modules, targets)
    )
    return live, target


def _functional(params: Params, flats: Tensors, targets: Tensors, buffers: _Buffers) -> Nets:
    """Return networks and values that take their parameters from flat tensors, and their buffers from `buffers`."""

    def part(name: str, module: nn.Module | None, flat: Tensor, buffers: Mapping[str, Tensors]) -> Any:
        if module is None:
            return flat
        names = [key for key, _ in trained(params.modules[name])]
        tensors = dict(zip(names, views(params.modules[name], flat)[0], strict=True)) | dict(buffers[name])

        def call(*args: Any, **options: Any) -> Any:  # Any: the module's arguments and result
            return torch.func.functional_call(module, tensors, args, options)

        return call

    own, theirs = buffers
    live = {name: part(name, params.modules.get(name), flat, own) for name, flat in flats.items()}
    frozen = {name: part(name, params.modules.get(name), flat.detach(), own) for name, flat in flats.items()}
    target = {name: part(name, params.targets[name].module, flat, theirs) for name, flat in targets.items()}
    return Nets({**live, "frozen": Nets(frozen), "target": _Targets(target)})
