"""The networks in PyTorch, as its users would write them: `nn.LSTM`, packed sequences, DDP.

`python -m parity.peers.pytorch_peer` takes the flags of `train.py`. One replica is one process
with `--threads` threads; several are DistributedDataParallel over gloo, a process each.

PyTorch's cells have a second bias, which here is zero and stays it; its gates are ordered like
ours, its kernels are transposed.

Source: Paszke et al. 2019, arXiv:1912.01703; Li et al. 2020, arXiv:2006.15704 (DDP).
"""

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from parity.peers.command import peer_command
from parity.spec.batch_io import StepInputs, StepResult, split_feeds
from parity.spec.initial import initial_snapshot
from parity.spec.networks.language_model import LanguageModelSpec
from parity.spec.networks.seq2seq import Seq2seqSpec
from parity.spec.spec import Spec
from parity.training.meter import peak_memory

Tensors = dict[str, Tensor]


class _Recurrent(nn.Module):
    """One layer of either cell, in one direction or both.

    Args:
      name: canonical, of its parameters.
    """

    def __init__(self, name: str, cell: str, inputs: int, hidden: int, both: bool = False):
        super().__init__()
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        self.rnn = kind(inputs, hidden // 2 if both else hidden, bidirectional=both)
        names = {"": f"{name}/forward", "_reverse": f"{name}/backward"} if both else {"": name}
        self.canonical: dict[str, nn.Parameter] = {}
        for end, path in names.items():
            getattr(self.rnn, f"bias_hh_l0{end}").requires_grad_(False).zero_()
            self.canonical |= {
                f"{path}/input_kernel": getattr(self.rnn, f"weight_ih_l0{end}"),
                f"{path}/recurrent_kernel": getattr(self.rnn, f"weight_hh_l0{end}"),
                f"{path}/bias": getattr(self.rnn, f"bias_ih_l0{end}"),
            }

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, state: Any = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return outputs [time, batch, hidden], and the final state's parts [batch, hidden].

        Args:
          lengths: of the rows, on whose padding no time is spent; none if all are full.
        """
        if lengths is None:
            outputs, last = self.rnn(inputs, state)
        else:
            packed = pack_padded_sequence(inputs, lengths, enforce_sorted=False)
            outputs, last = self.rnn(packed, state)
            outputs, _ = pad_packed_sequence(outputs, total_length=len(inputs))
        parts = last if isinstance(last, tuple) else (last,)
        return outputs, tuple(torch.cat(list(part), dim=1) for part in parts)


def _state(parts: tuple[Tensor, ...]) -> Any:
    """Return a layer's state as PyTorch's cells take it, from its parts [batch, hidden]."""
    unsqueezed = tuple(part.unsqueeze(0).contiguous() for part in parts)
    return unsqueezed if len(unsqueezed) == 2 else unsqueezed[0]


def _real_rows(inputs: Tensor, lengths: Tensor) -> Tensor:
    """Keep the real steps of [time, batch, ...] as rows, time varying slowest."""
    real = torch.arange(len(inputs)).unsqueeze(1) < lengths
    return inputs[real]


class LanguageModel(nn.Module):
    """The recurrent language model; see `language_model` in tf_impl/networks.py."""

    def __init__(self, model: LanguageModelSpec):
        super().__init__()
        self.embed = nn.Embedding(model.vocabulary_size, model.embedding_size)
        self.softmax = nn.Linear(model.hidden_size, model.vocabulary_size)
        self.layers = nn.ModuleList(
            _Recurrent(
                f"lstm_{k}",
                "lstm",
                model.hidden_size if k else model.embedding_size,
                model.hidden_size,
            )
            for k in range(model.num_layers)
        )
        self.canonical = {
            "embed/table": self.embed.weight,
            "softmax/kernel": self.softmax.weight,
            "softmax/bias": self.softmax.bias,
        }

    def forward(self, feed: Tensors) -> tuple[Tensor, Tensors]:
        """Return the replica's share of the loss, and the state by name."""
        tokens, targets, lengths = feed["tokens"].T, feed["targets"].T, feed["lengths"]
        short = lengths if int(lengths.min()) < len(tokens) else None
        hidden = _masked(self.embed(tokens), feed, "embedded")
        states = []
        for k, layer in enumerate(self.layers):
            before = feed["h"][:, k], feed["c"][:, k]
            if short is None or int(lengths.min()) > 0:
                hidden, after = layer(hidden, short, _state(before))
            else:  # rows without a token, which cannot be packed, keep their state
                hidden, after = layer(hidden, lengths.clamp(min=1), _state(before))
                none = (lengths == 0).unsqueeze(1)
                after = tuple(
                    torch.where(none, b, a) for b, a in zip(before, after, strict=True)
                )
            hidden = _masked(hidden, feed, f"lstm_{k}")
            states.append(after)
        rows = hidden.flatten(0, 1) if short is None else _real_rows(hidden, lengths)
        wanted = targets.flatten() if short is None else _real_rows(targets, lengths)
        losses = F.cross_entropy(self.softmax(rows), wanted, reduction="sum")
        return losses * feed["scale"], _joined(states)


class Seq2seq(nn.Module):
    """Encoder and attending decoder; see `seq2seq` in tf_impl/networks.py."""

    def __init__(self, model: Seq2seqSpec):
        super().__init__()
        self.model, size = model, model.hidden_size
        self.source = nn.Embedding(model.source_vocabulary_size, model.embedding_size)
        self.target = nn.Embedding(model.target_vocabulary_size, model.embedding_size)
        self.softmax = nn.Linear(size, model.target_vocabulary_size)
        self.output = nn.Linear(2 * size, size, bias=False)
        self.canonical: dict[str, nn.Parameter] = {
            "encoder/embed/table": self.source.weight,
            "decoder/embed/table": self.target.weight,
            "softmax/kernel": self.softmax.weight,
            "softmax/bias": self.softmax.bias,
            "attention/output_kernel": self.output.weight,
        }
        self.encoder = nn.ModuleList(
            _Recurrent(
                f"encoder/{model.cell}_{k}",
                model.cell,
                size if k else model.embedding_size,
                size,
                both=k == 0 and model.bidirectional,
            )
            for k in range(model.num_layers)
        )
        widths = [size if k else model.embedding_size for k in range(model.num_layers)]
        names = [f"decoder/{model.cell}_{k}" for k in range(model.num_layers)]
        if model.input_feeding:
            kind = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[model.cell]
            widths[0] += size
            self.decoder = nn.ModuleList(kind(width, size) for width in widths)
            for name, cell in zip(names, self.decoder, strict=True):
                cell.bias_hh.requires_grad_(False).zero_()
                self.canonical |= {
                    f"{name}/input_kernel": cell.weight_ih,
                    f"{name}/recurrent_kernel": cell.weight_hh,
                    f"{name}/bias": cell.bias_ih,
                }
        else:
            self.decoder = nn.ModuleList(
                _Recurrent(name, model.cell, width, size)
                for name, width in zip(names, widths, strict=True)
            )
        if model.attention != "dot":
            self.memory = nn.Linear(size, size, bias=False)
            self.canonical["attention/memory_kernel"] = self.memory.weight
        if model.attention == "scaled":
            self.scale = nn.Parameter(torch.ones(1))
            self.canonical["attention/scale"] = self.scale
        if model.attention == "bahdanau":
            self.query = nn.Linear(size, size, bias=False)
            self.score = nn.Parameter(torch.zeros(size))
            self.canonical["attention/query_kernel"] = self.query.weight
            self.canonical["attention/score_kernel"] = self.score

    def forward(self, feed: Tensors) -> tuple[Tensor, Tensors]:
        """Return the replica's share of the loss, and the encoder's state by name."""
        lengths = feed["lengths"]
        memory, states = self._encode(feed)
        keys = memory if self.model.attention == "dot" else self.memory(memory)
        if self.model.attention == "scaled":
            keys = keys * self.scale
        beyond = torch.arange(memory.shape[1]) >= feed["source_lengths"].unsqueeze(1)
        embedded = _masked(self.target(feed["tokens"].T), feed, "target_embedded")
        decode = self._decode_fed if self.model.input_feeding else self._decode
        outputs = decode(embedded, states, feed, (memory, keys, beyond))
        outputs = _real_rows(_masked(outputs, feed, "attentional"), lengths)
        targets = _real_rows(feed["targets"].T, lengths)
        losses = F.cross_entropy(self.softmax(outputs), targets, reduction="sum")
        return losses * feed["scale"], _joined(states)

    def _encode(self, feed: Tensors) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        hidden, states = self.source(feed["source"].T), []
        for k, layer in enumerate(self.encoder):
            hidden = _masked(hidden, feed, f"encoder_{k - 1}" if k else "source_embedded")
            hidden, state = layer(hidden, feed["source_lengths"])
            states.append(state)
        return hidden.transpose(0, 1), states

    def _decode(
        self, inputs: Tensor, states: list, feed: Tensors, held: tuple[Tensor, ...]
    ) -> Tensor:
        for k, layer in enumerate(self.decoder):
            hidden, _ = layer(inputs, state=_state(states[k]))
            inputs = _masked(hidden, feed, f"decoder_{k}")
        context = self._attend(hidden.transpose(0, 1), *held).transpose(0, 1)
        return torch.tanh(self.output(torch.cat([context, hidden], dim=2)))

    def _decode_fed(
        self, inputs: Tensor, states: list, feed: Tensors, held: tuple[Tensor, ...]
    ) -> Tensor:
        asks_first = self.model.attention == "bahdanau"
        states, fed = list(states), torch.zeros_like(states[-1][0])
        masks = {k: feed.get(f"mask/decoder_{k}") for k in range(len(states) - 1)}
        contexts, tops, outputs = [], [], []
        for t, x in enumerate(inputs):
            if asks_first:
                fed = self._attend(states[-1][0].unsqueeze(1), *held).squeeze(1)
                contexts.append(fed)
            below = torch.cat([x, fed], dim=1)
            for k, cell in enumerate(self.decoder):
                state = cell(below, states[k] if len(states[k]) == 2 else states[k][0])
                states[k] = state if isinstance(state, tuple) else (state,)
                below = states[k][0]
                mask = masks.get(k)
                if mask is not None:
                    below = below * mask[:, t]
            tops.append(states[-1][0])
            if not asks_first:
                context = self._attend(tops[-1].unsqueeze(1), *held).squeeze(1)
                fed = torch.tanh(self.output(torch.cat([context, tops[-1]], dim=1)))
                outputs.append(fed)
        if asks_first:
            both = torch.cat([torch.stack(contexts), torch.stack(tops)], dim=2)
            return torch.tanh(self.output(both))
        return torch.stack(outputs)

    def _attend(self, queries: Tensor, memory: Tensor, keys: Tensor, beyond: Tensor) -> Tensor:
        """Return the contexts of queries [batch, time, hidden]."""
        if self.model.attention == "bahdanau":
            fit = torch.tanh(self.query(queries).unsqueeze(2) + keys.unsqueeze(1))
            scores = fit @ self.score
        else:
            scores = queries @ keys.transpose(1, 2)
        scores = scores.masked_fill(beyond.unsqueeze(1), -torch.inf)
        return torch.softmax(scores, dim=2) @ memory


def _masked(inputs: Tensor, feed: Tensors, name: str) -> Tensor:
    """Multiply [time, batch, width] by its dropout mask, if there is one."""
    mask = feed.get(f"mask/{name}")
    return inputs if mask is None else inputs * mask.transpose(0, 1)


def _joined(states: list) -> Tensors:
    """Return the state by name, each [batch, layers, hidden]."""
    parts = zip(*states, strict=True)
    return {n: torch.stack(part, dim=1) for n, part in zip("hc", parts, strict=False)}


NETWORKS = {"language-model": LanguageModel, "seq2seq": Seq2seq}


class _Replica:
    """One process's copy of the network, and its optimiser."""

    def __init__(self, spec: Spec, threads: int, replicas: int):
        torch.set_num_threads(threads)
        self.spec, self.replicas = spec, replicas
        dtype = {"float32": torch.float32, "float64": torch.float64}[spec.training.dtype]
        torch.set_default_dtype(dtype)
        self.network = NETWORKS[spec.network](spec.model)
        self.canonical = dict(self.network.canonical)
        for module in self.network.modules():
            if isinstance(module, _Recurrent):
                self.canonical |= module.canonical
        self.load(initial_snapshot(spec))
        self.trained = list(self.canonical.values())
        self.parallel: nn.Module = self.network
        if replicas > 1:
            self.parallel = DistributedDataParallel(self.network, gradient_as_bucket_view=True)
        training = spec.training
        rate = training.learning_rate
        self.optimizer: torch.optim.Optimizer
        if training.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.trained, rate, fused=True)
        else:
            betas = training.beta1, training.beta2
            self.optimizer = torch.optim.Adam(
                self.trained, rate, betas, training.epsilon, fused=True
            )

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set the weights; the optimiser's state stays."""
        with torch.no_grad():
            for name, parameter in self.canonical.items():
                value = torch.from_numpy(np.array(snapshot[f"weight/{name}"]))
                kernel = name.endswith("kernel") and value.ndim == 2
                parameter.copy_(value.T if kernel else value)

    def step(self, feed: dict[str, np.ndarray], rate: float) -> tuple[float, Any, float]:
        """Train on this replica's rows; return its loss, state and the gradient's norm."""
        loss, state = self.parallel({n: torch.from_numpy(a) for n, a in feed.items()})
        self.optimizer.zero_grad(set_to_none=True)
        # DDP takes the mean of the replicas' gradients; the shares of the loss are to be summed
        (loss * self.replicas).sum().backward()
        norm = nn.utils.clip_grad_norm_(self.trained, self.spec.training.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return loss.item(), {n: a.detach().numpy() for n, a in state.items()}, norm.item()


class Trainer:
    """Runs steps of a network on some replicas.

    Attributes:
      spec: Spec.
      replicas: number of replicas, a process each.
      framework, versions: what runs it.
    """

    framework = "pytorch"
    versions: ClassVar = {"torch": torch.__version__}

    def __init__(self, spec: Spec, replicas: int, threads: int):
        """Build the network on every replica."""
        self.spec, self.replicas = spec, replicas
        self._others: list[Connection] = []
        if replicas > 1:
            # removed with this object; where the processes find each other
            self._meeting = tempfile.TemporaryDirectory(prefix="parity-")
            folder = self._meeting.name
            context = multiprocessing.get_context("spawn")
            for rank in range(1, replicas):
                mine, its = context.Pipe()
                arguments = its, spec, rank, replicas, threads, folder
                context.Process(target=_work, args=arguments, daemon=True).start()
                self._others.append(mine)
            _join(0, replicas, folder)
        self._replica = _Replica(spec, threads, replicas)
        for other in self._others:
            other.recv()

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
    ) -> StepResult:
        """Train on one global batch."""
        mine, *others = split_feeds(self.spec, inputs, state, self.replicas)
        for connection, feed in zip(self._others, others, strict=True):
            connection.send((feed, learning_rate))
        results = [self._replica.step(mine, learning_rate)]
        results += [connection.recv() for connection in self._others]
        losses, states, norms = zip(*results, strict=True)
        joined = {n: np.concatenate([each[n] for each in states]) for n in states[0]}
        return StepResult(np.array(losses), joined, norms[0], {})

    def peak_memory(self) -> list[int]:
        """Return the most bytes that each process has held."""
        for connection in self._others:
            connection.send(None)
        return [peak_memory(), *(connection.recv() for connection in self._others)]


def _join(rank: int, replicas: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=replicas
    )


def _work(
    connection: Connection, spec: Spec, rank: int, replicas: int, threads: int, folder: str
) -> None:
    """Be a replica other than the first: train on what comes until nothing comes any more."""
    _join(rank, replicas, folder)
    replica = _Replica(spec, threads, replicas)
    connection.send(None)
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        connection.send(peak_memory() if asked is None else replica.step(*asked))


if __name__ == "__main__":
    peer_command("pytorch", Trainer)
