"""Encoder: from observations to the features that heads take, in the learner and where a policy acts.

Plain vectors are flattened and that is all. Images, Dict and Tuple observations go through a torso, and features
through a memory where the config asks for one; both are modules of autograd, whose gradient comes from the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.inputs import Inputs
from drl_cli.networks.memory import make_memory
from drl_cli.networks.torsos import make_torso, torso_name
from drl_cli.optim.group import Context
from drl_cli.optim.params import Params
from drl_cli.types import MASK, Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema
from drl_cli.utils.lazy import torch
from drl_cli.utils.torch_ops import one_thread

if TYPE_CHECKING:
    from torch import Tensor

    from drl_cli.networks.recurrent import Memory

Batch = Mapping[str, Any]  # Any: a tensor, or a dict of tensors


def memory_columns(network: NetworkConfig) -> Schema:
    """What a policy with memory adds to a row: its state before the row's step."""
    return {} if network.memory == "none" else {"state": Column((network.state_size,), "float32")}


class Encoder:
    """The learner's: `size` features; `parts` are the modules for Params, none for plain vectors."""

    def __init__(self, network: NetworkConfig, spec: EnvSpec, generator: torch.Generator) -> None:
        self.inputs = Inputs(spec.obs)
        self.torso = make_torso(network, spec, generator)
        width: int = self.inputs.width if self.torso is None else self.torso.size  # type: ignore[assignment]
        self.memory = None if network.memory == "none" else make_memory(network, width, generator)
        self.size: int = width if self.memory is None else self.memory.size
        modules = {"torso": self.torso, "memory": self.memory}
        self.parts = {name: module for name, module in modules.items() if module is not None}
        self.is_trainable = bool(self.parts)
        """Whether it only flattens, and so has nothing to learn."""

    def target(self, params: Params) -> Encoder:
        """The same of the targets of its parts, which are made here."""
        other = object.__new__(Encoder)
        modules = {name: params.target(name).module for name in self.parts}
        vars(other).update(vars(self), parts=modules, torso=modules.get("torso"), memory=modules.get("memory"))
        return other

    def __call__(self, batch: Batch, burn_in: int = 0, learns: bool = True) -> View:
        """What it sees in a batch `[B, ...]`, or in sequences `[B, burn_in + T, ...]`, which have a column `valid`."""
        if "valid" not in batch:
            return Rows(self, batch, learns) if self.is_trainable else Flat(self, batch)
        if self.memory is None:
            return Rows(self, flat_steps(batch, burn_in), learns)
        return Unrolled(self, self.memory, batch, burn_in, learns)

    def features(self, obs: Any) -> Tensor:  # Any: as in Batch
        """Of observations `[N, ...]`, before the memory: float32 `[N, size]`."""
        features: Tensor = self.inputs.tensor(obs) if self.torso is None else self.torso(obs)
        return features


class View:
    """Features `[N, size]` of the N learned steps of a batch: `obs`, and `next_obs`, from which nothing is learned."""

    _obs: Tensor
    _next_obs: Tensor

    @property
    def obs(self) -> Tensor:
        """Those of the observations."""
        return self._obs

    @property
    def next_obs(self) -> Tensor:
        """Those of the next observations."""
        return self._next_obs

    def backward(self, d_obs: Tensor | None) -> None:
        """Write the gradients of the encoder's parts, given d loss/d obs; nothing where it has none."""


class Flat(View):
    """Of rows where there is nothing to learn: they are but flattened."""

    def __init__(self, encoder: Encoder, batch: Batch) -> None:
        self._obs, self._next_obs = encoder.inputs.tensor(batch["obs"]), encoder.inputs.tensor(batch["next_obs"])


class Rows(View):
    """Of rows that have nothing to do with one another. What nobody learns from is made when it is asked for."""

    def __init__(self, encoder: Encoder, batch: Batch, learns: bool) -> None:
        self.encoder, self.batch = encoder, batch
        self._out: Tensor | None = None
        if learns and encoder.is_trainable:
            with torch.enable_grad():
                self._out = encoder.features(batch["obs"])

    @property
    def obs(self) -> Tensor:
        return self._features("obs") if self._out is None else self._out.detach()

    @property
    def next_obs(self) -> Tensor:
        return self._features("next_obs")

    def _features(self, name: str) -> Tensor:
        with torch.no_grad():
            return self.encoder.features(self.batch[name])

    def backward(self, d_obs: Tensor | None) -> None:
        if self._out is not None:
            _backward(self.encoder, self._out, d_obs)


class Unrolled(View):
    """Of sequences, through the memory: from each one's stored `state`, or from zero where its episode begins in it.

    Next observations are a later step's input, so that one pass over T + 1 inputs serves both. The first
    `burn_in` steps only warm the memory up (Kapturowski et al. 2019, section 3): nothing is learned through them.
    """

    def __init__(self, encoder: Encoder, memory: Memory, batch: Batch, burn_in: int, learns: bool) -> None:
        self.encoder = encoder
        valid = batch["valid"]  # [B, L]
        size, length = valid.shape
        begins = torch.zeros(length + 1, size, dtype=torch.bool, device=valid.device)
        begins[1:length] = (valid[:, 1:] & ~valid[:, :-1]).t()  # padded in front: its episode begins there
        with torch.set_grad_enabled(learns):
            inputs = _shifted(encoder, batch, valid, burn_in)  # [L + 1, B, F]
            state = batch["state"]
            if burn_in:
                with torch.no_grad():
                    _, state = memory.unroll(inputs[:burn_in], state, begins[:burn_in])
            out, _ = memory.unroll(inputs[burn_in:], state, begins[burn_in:])  # [T + 1, B, H]
            learned = out[:-1].transpose(0, 1).flatten(0, 1)
        self._out = learned if learns else None
        self._obs = learned.detach()
        after = out.detach().transpose(0, 1)  # [B, T + 1, H]
        if "last" in batch:
            last = batch["last"][:, burn_in:] - burn_in
            self._next_obs = at_steps(after, torch.arange(size, device=valid.device).unsqueeze(1), last + 1).flatten(
                0, 1
            )
        else:
            self._next_obs = after[:, 1:].flatten(0, 1)

    def backward(self, d_obs: Tensor | None) -> None:
        if self._out is not None:
            _backward(self.encoder, self._out, d_obs)


def _shifted(encoder: Encoder, batch: Batch, valid: Tensor, burn_in: int) -> Tensor:
    """The memory's inputs `[L + 1, B, F]`: obs, and after the last valid step of a sequence its next_obs."""
    size, length = valid.shape

    def features(obs: Any) -> Tensor:  # Any: as in Batch
        return encoder.features(_flat(obs)).view(size, length, -1).transpose(0, 1)

    obs = features(batch["obs"])
    with torch.no_grad():
        ends = valid & ~torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)  # the last valid step of each
        last = ends.int().argmax(1)
        rows = torch.arange(size, device=valid.device)
        final = encoder.features(at_steps(batch["next_obs"], rows, last))  # [B, F]
    after = torch.zeros_like(obs[:1])
    return torch.cat([obs, after]).index_put((last + 1, rows), final)


def _backward(encoder: Encoder, out: Tensor, d_out: Tensor | None) -> None:
    for module in encoder.parts.values():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
    torch.autograd.backward(out, d_out)


def flat_steps(batch: Batch, burn_in: int = 0) -> dict[str, Any]:  # Any: as in Batch
    """The learned steps of sequences `[B, burn_in + T, ...]` as rows `[B T, ...]`; those of padding weigh nothing.

    `valid_weight` `[B T]` is 1 for valid steps and 0 for padding; `weight` is that times the sequence's own, if any.
    Columns that are not by step are left out.
    """
    valid = batch["valid"][:, burn_in:].float()
    weight = valid * batch["weight"].unsqueeze(-1) if "weight" in batch else valid
    steps = {name: _flat(column, burn_in) for name, column in batch.items() if name not in ("state", "weight", "valid")}
    return steps | {"valid_weight": valid.reshape(-1), "weight": weight.reshape(-1)}


def _flat(column: Any, burn_in: int = 0) -> Any:  # Any: as in Batch
    if isinstance(column, Mapping):
        return {name: _flat(part, burn_in) for name, part in column.items()}
    return column[:, burn_in:].flatten(0, 1)


def at_steps(column: Any, rows: Tensor, step: Tensor) -> Any:  # Any: as in Batch
    """Of sequences `[B, L, ...]`, or a dict of them, the steps of these numbers in these rows."""
    if isinstance(column, Mapping):
        return {name: at_steps(part, rows, step) for name, part in column.items()}
    return column[rows, step]


class ActingEncoder:
    """Where a policy acts: numpy in and out; torch, on one thread, only where there is a torso or a memory.

    `width` are its features; its memory is that of the environments it is called for, one row each. `learner` is the
    encoder in torch, where there is one.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        self.inputs = Inputs(spec.obs)
        self.params: Params | None = None
        self.width = self.inputs.width
        self.memory: Array | None = None
        self.learner: Encoder | None = None
        if network.memory != "none" or torso_name(network, spec) is not None:
            self.learner = Encoder(network, spec, torch.Generator().manual_seed(0))
            self.width = self.learner.size
            self.params = Params(Context(torch.device("cpu")), **self.learner.parts)
            for module in self.learner.parts.values():
                module.eval()

    def load(self, params: Array) -> Array:
        """Take its parameters from the front of a policy's vector; returns the rest."""
        if self.params is None:
            return params
        names = list(self.params.slices)
        size = len(self.params.vector(names))
        self.params.load_vector(names, params[:size])
        return params[size:]

    def __call__(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        """Features `[E, width]` of observations, and the columns that the memory adds to these rows."""
        if self.learner is None:
            return self.inputs.array(obs), {}
        with torch.no_grad(), one_thread():
            x = self.learner.features(_tensors(obs))
            if self.learner.memory is None:
                return x.numpy(), {}
            assert last is not None, "a policy with memory has to be told what the last step gave"
            if self.memory is None or (len(self.memory) != len(x) and last.begins.all()):
                self.memory = np.zeros((len(x), self.learner.memory.state_size), np.float32)
            before = np.where(last.begins[:, None], np.float32(0), self.memory)
            out, after = self.learner.memory.step(x, torch.from_numpy(before))
            self.memory = after.numpy()
            return out.numpy(), {"state": before}


def _tensors(obs: Obs) -> Any:  # Any: as in Batch
    if isinstance(obs, dict):
        return {name: torch.from_numpy(part) for name, part in obs.items()}
    return torch.from_numpy(obs)


def action_mask(obs: Any) -> Any:  # Any: numpy or torch
    """Which actions are allowed, bool `[n, choices]`, where the observations say so; else None."""
    return obs.get(MASK) if isinstance(obs, dict) else None
