"""LSTM (Hochreiter & Schmidhuber 1997) and GRU (Cho et al. 2014). Episodes begin with state 0. Imports torch."""

import torch
from torch import Tensor, nn

from drl_cli.networks.config import NetworkConfig
from drl_cli.networks.modules import orthogonal_


class Memory(nn.Module):
    """One recurrent layer with `size` outputs.

    The state of a row, `[state_size]`, is the hidden vector; an LSTM's cell vector follows it. An episode begins with
    a state of zeros.
    """

    def __init__(self, network: NetworkConfig, inputs: int) -> None:
        super().__init__()
        self.size, self.state_size = network.memory_size, network.state_size
        self.is_lstm = network.memory == "lstm"
        self.cell = (nn.LSTM if self.is_lstm else nn.GRU)(inputs, self.size)
        if network.init == "orthogonal":  # init=uniform is torch's default: U(-1/sqrt(size), 1/sqrt(size))
            orthogonal_(self.cell, 1.0)
        if self.is_lstm:  # so that the LSTM forgets little at first (Jozefowicz et al. 2015)
            with torch.no_grad():
                dict(self.cell.named_parameters())["bias_ih_l0"][self.size : 2 * self.size] += 1.0

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Make one step: inputs `[n, F]` and state `[n, S]` -> outputs `[n, size]` and next state `[n, S]`."""
        (weights,) = self.cell.all_weights  # for one step, torch.lstm_cell takes half as long as nn.LSTM
        if not self.is_lstm:
            hidden = torch.gru_cell(x, state, *weights)
            return hidden, hidden
        hidden, c = torch.lstm_cell(x, state.chunk(2, -1), *weights)
        return hidden, torch.cat([hidden, c], -1)

    def unroll(self, x: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Make T steps: x `[T, n, F]` and the first state `[n, S]` -> outputs `[T, n, size]` and the last state.

        `begins`, bool `[T, n]`, marks the steps at which an episode begins; the state of such a row is set to 0 first.
        Steps between which no episode begins are computed in one call. The results equal `step`'s up to rounding.
        """
        starts = [0, *(begins[1:].any(1).nonzero().flatten() + 1).tolist()]
        parts = []
        for start, end in zip(starts, [*starts[1:], len(x)], strict=True):
            state = state.masked_fill(begins[start].unsqueeze(1), 0.0)
            out, state = self._run(x[start:end], state)
            parts.append(out)
        return torch.cat(parts) if len(parts) > 1 else parts[0], state

    def _run(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = state.unsqueeze(0)
        if not self.is_lstm:
            out, hidden = self.cell(x, hidden)
            return out, hidden[0]
        h, c = (part.contiguous() for part in hidden.chunk(2, -1))
        out, (h, c) = self.cell(x, (h, c))
        return out, torch.cat([h[0], c[0]], -1)
