"""Encoder: turns observations into features, the inputs of actors and critics, for trainers and for policies.

By default, images, and Dict and Tuple observations with images, go through a torso, such as a CNN. Other observations
are only flattened. With `network.memory`, the features then go through an LSTM or a GRU. Torso and memory are torch
modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.inputs import Inputs
from drl_cli.networks.torsos import make_torso, torso_name
from drl_cli.optim.context import Context
from drl_cli.optim.params import Params
from drl_cli.types import MASK, Array, Column, Columns, EnvSpec, Obs, PreviousStep, Schema, map_parts
from drl_cli.utils.deferred import present
from drl_cli.utils.lazy import torch
from drl_cli.utils.torch_ops import one_thread

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from drl_cli.networks.modules import Memory

Batch = Mapping[str, Any]  # Any: a tensor, or a dict of tensors


def memory_columns(network: NetworkConfig) -> Schema:
    """Return the schema of the column `state`, the policy's recurrent state before a step; {} without a memory."""
    return {} if network.memory == "none" else {"state": Column((network.state_size,), "float32")}


def make_memory(network: NetworkConfig, inputs: int, generator: Generator) -> Memory:
    """Return a new LSTM or GRU, as `network.memory` says, with `inputs` inputs. The generator draws the weights."""
    from drl_cli.networks import modules  # imports torch

    assert network.memory != "none"
    with modules.seeded(generator):
        return modules.Memory(network, inputs)


class Encoder:
    """The trainer's encoder, which computes `size` features of an observation.

    `parts` has the torso and the memory by name, if the encoder has them. The algorithm gives them to `Params`. An
    encoder without parts only flattens observations, so that `is_trainable` is False.
    """

    def __init__(self, inputs: Inputs, size: int, torso: Any = None, memory: Memory | None = None) -> None:
        """Make an encoder from modules, or from functions that replace the modules in a compiled graph."""
        self.inputs, self.size, self.torso, self.memory = inputs, size, torso, memory
        self.parts = {name: part for name, part in (("torso", torso), ("memory", memory)) if part is not None}
        self.is_trainable = len(self.parts) > 0

    @classmethod
    def build(cls, network: NetworkConfig, spec: EnvSpec, generator: Generator) -> Encoder:
        """Return a new encoder for the environment's observations, initialised from the generator."""
        inputs, torso = Inputs(spec.obs), make_torso(network, spec, generator)
        size: int = (inputs if torso is None else torso).size  # type: ignore[assignment]
        memory = None if network.memory == "none" else make_memory(network, size, generator)
        return cls(inputs, size if memory is None else memory.size, torso, memory)

    def on(self, nets: Any) -> Encoder:  # Any: drl_cli.optim.gradients.Nets
        """Return a copy of this encoder that uses the torso and the memory in `nets`, which a loss function gets."""
        if not self.is_trainable:
            return self
        # not with copy.copy, which torch.compile of torch 2.11 cannot compile
        return Encoder(self.inputs, self.size, **{name: getattr(nets, name) for name in self.parts})

    def __call__(self, batch: Batch, burn_in: int = 0, *, learns: bool = True) -> View:
        """Return the features of `obs` and `next_obs` in a batch of transitions or of sequences.

        Columns of transitions are `[B, ...]`. Columns of sequences are `[B, burn_in + T, ...]`, and one of them is
        `valid`, which is False for padding. The features of sequences have B T rows, one for each step after the
        burn-in. If `learns`, gradients flow through `View.learned` to the encoder. An encoder with memory needs
        sequences, with the column `state` `[B, state_size]`.
        """
        if "valid" in batch:
            if self.memory is not None:
                return _unroll(self, self.memory, batch, burn_in, learns=learns)
            batch = flat_steps(batch, burn_in)
        if not self.is_trainable:
            obs, next_obs = self.features(batch["obs"]), self.features(batch["next_obs"])
            return View(lambda: obs, lambda: next_obs)

        def without_gradient(name: str) -> Tensor:
            with torch.no_grad():
                return self.features(batch[name])

        if not learns:
            return View(lambda: without_gradient("obs"), lambda: without_gradient("next_obs"))
        with torch.enable_grad():
            learned = self.features(batch["obs"])
        return View(lambda: learned.detach(), lambda: without_gradient("next_obs"), learned)

    def features(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        """Return the inputs of the memory or of the hidden layers, float32 `[N, F]`, for observations `[N, ...]`."""
        features: Tensor = self.inputs.tensor(obs) if self.torso is None else self.torso(obs)
        return features


class NetEncoder:
    """The part `nets.encoder` of an update: the encoder with the parameters that `nets` has.

    A call returns the features `[n, size]` of observations `[n, ...]`. `see` returns those of a whole batch, of
    transitions or of sequences. Unless `learns`, gradients do not flow to the encoder.
    """

    def __init__(self, encoder: Encoder, burn_in: int, *, learns: bool) -> None:
        self.encoder, self.burn_in, self.learns = encoder, burn_in, learns

    def __call__(self, obs: Any) -> Tensor:  # Any: a tensor, or a dict of tensors
        return self.encoder.features(obs)

    def see(self, batch: Batch) -> View:
        """Return the features of the batch's observations, one row for each step."""
        return self.encoder(batch, self.burn_in, learns=self.learns)


class View:
    """The features `[N, size]` of `obs` and `next_obs`, for the N steps of a batch.

    `learned` has the features of `obs` with autograd's graph, or is None if the encoder does not learn. The functions
    `obs` and `next_obs` return features without a gradient. They are only called if a loss function reads the features,
    because a torso takes most of the time of an update.
    """

    def __init__(
        self, obs: Callable[[], Tensor], next_obs: Callable[[], Tensor], learned: Tensor | None = None
    ) -> None:
        self._obs, self._next_obs, self._learned = obs, next_obs, learned

    @property
    def obs(self) -> Tensor:
        """The features of `obs` without a gradient."""
        return self._obs()

    @property
    def learned(self) -> Tensor:
        """The features of `obs`, through which a loss trains the encoder."""
        return self._obs() if self._learned is None else self._learned

    @property
    def next_obs(self) -> Tensor:
        """The features of `next_obs` without a gradient."""
        return self._next_obs()


def _unroll(encoder: Encoder, memory: Memory, batch: Batch, burn_in: int, *, learns: bool) -> View:
    """Return what the encoder's call returns for sequences `[B, burn_in + T]`, by unrolling the memory from `state`.

    The valid steps of a sequence are consecutive steps of one episode. Padding comes before the first step of the
    episode, after the valid steps, or both. Therefore the state is set to 0 at a valid step that follows padding.

    The first `burn_in` steps only compute the recurrent state, without a gradient (Kapturowski et al. 2019, section 3).
    The next observation of a step is the observation of the following step. Therefore one pass over T + 1 inputs gives
    the features of `obs` and of `next_obs`.
    """
    valid = batch["valid"]
    num_sequences, length = valid.shape
    begins = torch.zeros(length + 1, num_sequences, dtype=torch.bool, device=valid.device)
    begins[1:length] = (valid[:, 1:] & ~valid[:, :-1]).t()
    with torch.set_grad_enabled(learns):
        inputs = _memory_inputs(encoder, batch, valid)  # [burn_in + T + 1, B, F]
        state = batch["state"]
        if burn_in:
            with torch.no_grad():
                _, state = memory.unroll(inputs[:burn_in], state, begins[:burn_in])
        out, _ = memory.unroll(inputs[burn_in:], state, begins[burn_in:])  # [T + 1, B, size]
        learned = out[:-1].transpose(0, 1).flatten(0, 1)
    obs, fixed = learned.detach(), out.detach().transpose(0, 1)  # fixed: [B, T + 1, size]
    if "last" in batch:  # n-step returns: the next observation of a step is the one after the step `last`
        last = batch["last"][:, burn_in:] - burn_in
        sequence = torch.arange(num_sequences, device=valid.device).unsqueeze(1)
        next_obs = fixed[sequence, last + 1].flatten(0, 1)
    else:
        next_obs = fixed[:, 1:].flatten(0, 1)
    return View(lambda: obs, lambda: next_obs, learned if learns else None)


def _memory_inputs(encoder: Encoder, batch: Batch, valid: Tensor) -> Tensor:
    """Return the memory's inputs for sequences of L steps, `[L + 1, B, F]`. `valid` is `[B, L]`.

    The inputs are the features of `obs`, and after the last valid step those of its `next_obs`. As the valid steps of a
    sequence are consecutive, the last one is the only valid step without a valid step after it.
    """
    num_sequences, length = valid.shape
    obs = encoder.features(_flat(batch["obs"])).view(num_sequences, length, -1).transpose(0, 1)
    with torch.no_grad():
        next_valid = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
        last = (valid & ~next_valid).int().argmax(1)  # [B]
        sequence = torch.arange(num_sequences, device=valid.device)
        final = encoder.features(at_steps(batch["next_obs"], sequence, last))  # [B, F]
    one_more = torch.zeros_like(obs[:1])
    return torch.cat([obs, one_more]).index_put((last + 1, sequence), final)


def flat_steps(batch: Batch, burn_in: int = 0) -> dict[str, Any]:  # Any: a tensor, or a dict of tensors
    """Return a batch of sequences as a batch of steps: columns `[B, burn_in + T, ...]` become `[B T, ...]`.

    The steps of the burn-in are left out. The new column `valid_weight` `[B T]` is 1 for valid steps and 0 for padding.
    The column `weight` `[B T]` is `valid_weight`, multiplied by the sequence's importance weight if the batch has these
    weights. The columns `state` and `valid` are left out.
    """
    valid = batch["valid"][:, burn_in:].float()
    weight = valid * batch["weight"].unsqueeze(-1) if "weight" in batch else valid
    left_out = ("state", "weight", "valid")
    steps = {name: _flat(column, burn_in) for name, column in batch.items() if name not in left_out}
    return steps | {"valid_weight": valid.reshape(-1), "weight": weight.reshape(-1)}


def _flat(column: Any, burn_in: int = 0) -> Any:  # Any: a tensor, or a dict of tensors
    """Return the steps of sequences after the burn-in, one after another: `[B, burn_in + T, ...]` -> `[B T, ...]`."""
    return map_parts(lambda x: x[:, burn_in:].flatten(0, 1), column)


def at_steps(column: Any, sequence: Tensor, step: Tensor) -> Any:  # Any: a tensor, or a dict of tensors
    """Return single steps of sequences, selected by the index of the sequence and the index of the step.

    `column` is `[B, L, ...]`, or a dict of such columns. The indices are broadcast to one shape `[...]`, and the result
    is `[..., ...]`: with `sequence` `[n]` and `step` `[n]`, `[n, ...]`; with `[B, 1]` and `[B, L]`, `[B, L, ...]`.
    """
    return map_parts(lambda x: x[sequence, step], column)


class ActingEncoder:
    """A policy's encoder, with numpy inputs and outputs. It runs a torso or a memory in torch, on one thread.

    `size` is the number of features. `torch_encoder` is the encoder in torch, or None if observations are only
    flattened. `states` `[E, state_size]` has the recurrent states of E environments, or is None before the first step.
    """

    def __init__(self, network: NetworkConfig, spec: EnvSpec) -> None:
        self.inputs = Inputs(spec.obs)
        self.params: Params | None = None
        self.size = self.inputs.size
        self.states: Array | None = None
        self.torch_encoder: Encoder | None = None
        if network.memory != "none" or torso_name(network, spec) is not None:
            any_seed = torch.Generator().manual_seed(0)  # `load` replaces the initial weights
            self.torch_encoder = Encoder.build(network, spec, any_seed)
            self.size = self.torch_encoder.size
            self.params = Params(Context(torch.device("cpu")), **self.torch_encoder.parts)
            for module in self.torch_encoder.parts.values():
                module.eval()

    def load(self, params: Array) -> Array:
        """Load the encoder's parameters and buffers, the first values of `params` `[size]`; return the other values."""
        if self.params is None:
            return params
        names = list(self.params.slices)
        num_own = len(self.params.vector(names))
        self.params.load_vector(names, params[:num_own])
        return params[num_own:]

    def __call__(self, obs: Obs, last: PreviousStep | None) -> tuple[Array, Columns]:
        """Return the features `[E, size]` of observations `[E, ...]`, and the columns that `memory_columns` lists.

        `last` describes the previous step. The recurrent state is set to 0 in environments where `last.begins` `[E]` is
        True, because an episode begins there. The number of environments may change only when all begin an episode.
        """
        if self.torch_encoder is None:
            return self.inputs.array(obs), {}
        with torch.no_grad(), one_thread():
            x = self.torch_encoder.features(map_parts(torch.from_numpy, obs))
            memory = self.torch_encoder.memory
            if memory is None:
                return x.numpy(), {}
            assert last is not None, "a policy with memory needs the previous step"
            has_other_environments = self.states is not None and len(self.states) != len(x)
            if self.states is None or (has_other_environments and last.begins.all()):
                self.states = np.zeros((len(x), memory.state_size), np.float32)
            before = np.where(last.begins[:, None], np.float32(0), self.states)
            out, after = memory.step(x, torch.from_numpy(before))
            self.states = after.numpy()
            return out.numpy(), {"state": before}


def encoder(network: NetworkConfig, spec: EnvSpec) -> Encoder:
    """Return the part `encoder` of an algorithm's networks: a torso for the observations, and `network.memory`.

    By default, images go through a CNN, the entries of a Dict or Tuple are joined, and other observations are only
    flattened. `size` is the number of features. In `Params`, it is the parts `torso` and `memory`, if it has them.
    Raise Refused if `network.torso` does not fit the observations.
    """
    if present.in_numpy:
        return ActingEncoder(network, spec)  # type: ignore[return-value]  # `networks` only reads its size
    return Encoder.build(network, spec, present.encoder or torch.default_generator)


def action_mask(obs: Any) -> Any:  # Any: numpy or torch
    """Return the legal-action mask of observations, bool `[n, choices]`, or None if there is no mask."""
    return obs.get(MASK) if isinstance(obs, dict) else None
