"""The networks, their loss and their update in PyTorch, from the papers and PyTorch's manual.

A fourth implementation for tests/test_witness_pytorch.py: PyTorch's own cells, cross entropy,
differentiation, clipping and optimisers, in float64. Nothing of this project is imported.

PyTorch's cells keep the gates in the order i, f, g, o (LSTM) and r, z, n (GRU), the kernels
transposed, and a second bias, which stays zero and is not trained. Its GRU resets after the
product: n = tanh(W x + b + r * (U h + b')).
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
SINGLE_STEPS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


def tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor of 64-bit numbers of its kind."""
    return torch.tensor(np.asarray(array))


class Named(nn.Module):
    """A network whose parameters have the names and the layout that checkpoints use.

    Attributes:
      stored: canonical name -> (parameter, whether it is stored transposed).
    """

    def __init__(self):
        super().__init__()
        self.stored: dict[str, tuple[nn.Parameter, bool]] = {}

    def finish(self) -> None:
        """Make everything float64, and draw weights that are not small."""
        self.double()
        draw = np.random.default_rng(5)
        shapes = {name: array.shape for name, array in self.arrays().items()}
        self.load({name: draw.uniform(-0.8, 0.8, shape) for name, shape in shapes.items()})

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Set every parameter from the arrays of its canonical name."""
        assert set(arrays) == set(self.stored)
        for name, (parameter, transposed) in self.stored.items():
            values = tensor(arrays[name].T if transposed else arrays[name])
            assert values.shape == parameter.shape, name
            parameter.data.copy_(values)

    def add_cell(self, name: str, cell: nn.Module, end: str) -> None:
        """Name the parameters of one direction of a cell; its second bias is zero for good."""
        getattr(cell, f"bias_hh{end}").requires_grad_(False).zero_()
        self.stored[f"{name}/input_kernel"] = getattr(cell, f"weight_ih{end}"), True
        self.stored[f"{name}/recurrent_kernel"] = getattr(cell, f"weight_hh{end}"), True
        self.stored[f"{name}/bias"] = getattr(cell, f"bias_ih{end}"), False

    def arrays(self, of=lambda parameter: parameter) -> dict[str, np.ndarray]:
        """Return name -> values of the parameters, or of what `of` makes of each."""
        found = {}
        for name, (parameter, transposed) in self.stored.items():
            values = of(parameter).detach()
            found[name] = (values.T if transposed else values).numpy().copy()
        return found


class LanguageModel(Named):
    """An embedding, LSTM layers and a projection, with dropout between them.

    Source: Zaremba et al. 2014, arXiv:1409.2329, section 3.
    """

    def __init__(self, words: int, width: int, hidden: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.project = nn.Linear(hidden, words)
        widths = [width] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(nn.LSTM(each, hidden, batch_first=True) for each in widths)
        self.stored["embed/table"] = self.embed.weight, False
        for k, layer in enumerate(self.layers):
            self.add_cell(f"lstm_{k}", layer, "_l0")
        self.stored["softmax/kernel"] = self.project.weight, True
        self.stored["softmax/bias"] = self.project.bias, False
        self.finish()

    def forward(self, batch: dict, masks: dict, state: dict) -> tuple[Tensor, dict]:
        """Return the summed cross entropy of a batch, and the state after it.

        Each row is computed alone and at its own length, so that there is no padding at all.
        """
        loss, after = torch.zeros((), dtype=torch.float64), {"h": [], "c": []}
        for row, length in enumerate(batch["lengths"].tolist()):
            h, c = state["h"][row], state["c"][row]  # [layers, hidden]
            if length:
                one = {name: mask[row : row + 1, :length] for name, mask in masks.items()}
                x = self.embed(batch["tokens"][row : row + 1, :length])
                x = x * one.get("embedded", 1.0)
                ends = []
                for k, layer in enumerate(self.layers):
                    before = tuple(part[k].reshape(1, 1, -1).contiguous() for part in (h, c))
                    x, end = layer(x, before)
                    x = x * one.get(f"lstm_{k}", 1.0)
                    ends.append(end)
                targets = batch["targets"][row, :length]
                loss = loss + F.cross_entropy(self.project(x)[0], targets, reduction="sum")
                h, c = (torch.cat(parts)[:, 0] for parts in zip(*ends, strict=True))
            after["h"].append(h.detach())
            after["c"].append(c.detach())
        return loss, {name: torch.stack(rows) for name, rows in after.items()}


class Seq2seq(Named):
    """An encoder, and a decoder that attends to its outputs.

    Sources: Luong et al. 2015, arXiv:1508.04025, sections 3.1 and 3.3; Bahdanau et al. 2015,
    arXiv:1409.0473, appendix A.1.2; Wu et al. 2016, arXiv:1609.08144, section 3.2.
    """

    def __init__(
        self,
        words: tuple[int, int],
        width: int,
        hidden: int,
        layers: int,
        cell: str,
        attention: str,
        feeding: bool,
        bidirectional: bool,
    ):
        super().__init__()
        self.cell, self.attention, self.feeding = cell, attention, feeding
        self.source, self.target = (nn.Embedding(count, width) for count in words)
        self.stored["encoder/embed/table"] = self.source.weight, False
        self.stored["decoder/embed/table"] = self.target.weight, False
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        for k in range(layers):
            both, name = bidirectional and k == 0, f"encoder/{cell}_{k}"
            of_layer = CELLS[cell](
                hidden if k else width,
                hidden // 2 if both else hidden,
                batch_first=True,
                bidirectional=both,
            )
            self.encoder.append(of_layer)
            self.add_cell(f"{name}/forward" if both else name, of_layer, "_l0")
            if both:
                self.add_cell(f"{name}/backward", of_layer, "_l0_reverse")
        for k in range(layers):
            fed = hidden if feeding else 0
            one_step = SINGLE_STEPS[cell](hidden if k else width + fed, hidden)
            self.decoder.append(one_step)
            self.add_cell(f"decoder/{cell}_{k}", one_step, "")
        if attention != "dot":
            self.memory_kernel = nn.Parameter(torch.zeros(hidden, hidden))
            self.stored["attention/memory_kernel"] = self.memory_kernel, False
        if attention == "scaled":
            self.scale = nn.Parameter(torch.zeros(1))
            self.stored["attention/scale"] = self.scale, False
        if attention == "bahdanau":
            self.query_kernel = nn.Parameter(torch.zeros(hidden, hidden))
            self.score_kernel = nn.Parameter(torch.zeros(hidden))
            self.stored["attention/query_kernel"] = self.query_kernel, False
            self.stored["attention/score_kernel"] = self.score_kernel, False
        self.output_kernel = nn.Parameter(torch.zeros(2 * hidden, hidden))
        self.stored["attention/output_kernel"] = self.output_kernel, False
        self.project = nn.Linear(hidden, words[1])
        self.stored["softmax/kernel"] = self.project.weight, True
        self.stored["softmax/bias"] = self.project.bias, False
        self.finish()

    def forward(self, batch: dict, masks: dict, state: dict) -> tuple[Tensor, dict]:
        """Return the summed cross entropy of a batch; no state is carried."""
        memory, states = self.encode(batch["source"], batch["source_lengths"], masks)
        steps = self.decode(batch["tokens"], memory, states, batch["source_lengths"], masks)
        logits = self.project(steps * masks.get("attentional", 1.0))
        beyond = torch.arange(steps.shape[1]) >= batch["lengths"][:, None]
        targets = batch["targets"].masked_fill(beyond, -100)  # what cross_entropy leaves out
        return F.cross_entropy(logits.transpose(1, 2), targets, reduction="sum"), {}

    def encode(self, source: Tensor, lengths: Tensor, masks: dict) -> tuple[Tensor, list]:
        """Return outputs [batch, source_time, hidden], and each layer's final state."""
        x, states = self.source(source), []
        for k, layer in enumerate(self.encoder):
            x = x * masks.get(f"encoder_{k - 1}" if k else "source_embedded", 1.0)
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            outputs, last = layer(packed)
            x, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
            parts = last if isinstance(last, tuple) else (last,)
            # [directions, batch, hidden] -> [batch, directions * hidden]
            states.append(tuple(torch.cat(list(part), dim=1) for part in parts))
        return x, states

    def decode(
        self, tokens: Tensor, memory: Tensor, states: list, lengths: Tensor, masks: dict
    ) -> Tensor:
        """Return attentional outputs [batch, time, hidden]; beyond a row's end, of no use."""
        embedded = self.target(tokens) * masks.get("target_embedded", 1.0)
        outputs, fed = [], torch.zeros_like(memory[:, 0])
        for t in range(tokens.shape[1]):
            below = {name: mask[:, t] for name, mask in masks.items() if "decoder" in name}
            fed, states = self.step(embedded[:, t], memory, states, fed, lengths, below)
            outputs.append(fed)
        return torch.stack(outputs, dim=1)

    def step(
        self, x: Tensor, memory: Tensor, states: list, fed: Tensor, lengths: Tensor, masks: dict
    ) -> tuple[Tensor, list]:
        """Return one step's attentional output, and the states after it."""
        attends_first = self.feeding and self.attention == "bahdanau"
        if attends_first:
            fed = self.attend(states[-1][0], memory, lengths)
        x, after = torch.cat([x, fed], dim=1) if self.feeding else x, []
        for k, one_step in enumerate(self.decoder):
            x = x * masks.get(f"decoder_{k - 1}", 1.0)
            new = one_step(x, states[k] if self.cell == "lstm" else states[k][0])
            after.append(new if self.cell == "lstm" else (new,))
            x = after[k][0]
        context = fed if attends_first else self.attend(x, memory, lengths)
        return torch.tanh(torch.cat([context, x], dim=1) @ self.output_kernel), after

    def attend(self, query: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean of the memory [batch, source_time, hidden], weighted by a softmax."""
        if self.attention == "bahdanau":
            fit = (query @ self.query_kernel)[:, None] + memory @ self.memory_kernel
            scores = torch.tanh(fit) @ self.score_kernel
        else:
            keys = memory if self.attention == "dot" else memory @ self.memory_kernel
            scores = torch.einsum("bsh,bh->bs", keys, query)
            scores = scores * self.scale if self.attention == "scaled" else scores
        beyond = torch.arange(memory.shape[1]) >= lengths[:, None]
        weights = torch.softmax(scores.masked_fill(beyond, -torch.inf), dim=1)
        return torch.einsum("bs,bsh->bh", weights, memory)


class Training:
    """PyTorch's own training of a network.

    Args:
      network: the network.
      optimizer: "sgd" or "adam".
      clip_norm: the greatest norm of a gradient.
      betas, epsilon: Adam's.
    """

    def __init__(self, network, optimizer, clip_norm, betas=(0.9, 0.999), epsilon=1e-8):
        self.network, self.clip_norm = network, clip_norm
        self.parameters = [parameter for parameter, _ in network.stored.values()]
        self.optimizer = (
            torch.optim.SGD(self.parameters, lr=1.0)
            if optimizer == "sgd"
            else torch.optim.Adam(self.parameters, lr=1.0, betas=betas, eps=epsilon)
        )

    def step(self, batch, masks, state, rate, divisor) -> dict:
        """Train one step on NumPy arrays; return loss, norm, gradients, weights and state."""
        loss, after = self.network(
            {name: tensor(array) for name, array in batch.items()},
            {name: tensor(array) for name, array in masks.items()},
            {name: tensor(array) for name, array in state.items()},
        )
        self.optimizer.zero_grad()
        (loss / divisor).backward()
        found = {
            "loss": float(loss) / divisor,
            "state": {n: a.numpy() for n, a in after.items()},
        }
        found["gradient"] = self.network.arrays(of=lambda parameter: parameter.grad)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters])
        # PyTorch divides by norm + 1e-6; a limit greater in the same ratio undoes that
        limit = self.clip_norm * float((norm + 1e-6) / norm)
        found["norm"] = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        found["clipped_gradient"] = self.network.arrays(of=lambda parameter: parameter.grad)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        found["weight"] = self.network.arrays()
        return found

    def moments(self) -> dict[str, np.ndarray]:
        """Return Adam's m and v, "name/m" and "name/v" -> array; nothing for SGD."""
        found = {}
        if isinstance(self.optimizer, torch.optim.SGD):
            return found
        for slot, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
            arrays = self.network.arrays(of=lambda p, key=key: self.optimizer.state[p][key])
            found |= {f"{name}/{slot}": array for name, array in arrays.items()}
        return found
