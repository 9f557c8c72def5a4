"""The networks in PyTorch, written as its users would: `nn.LSTM`, packed sequences.

PyTorch's cells have a second bias, which is zero here and is not trained. Their gates have the
same order as ours, and their kernels are transposed.

Source: Paszke et al. 2019, arXiv:1912.01703.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from parity.twins.spec.networks.language_model import LanguageModelSpec
from parity.twins.spec.networks.seq2seq import Seq2seqSpec

Tensors = dict[str, Tensor]
States = list[tuple[Tensor, ...]]  # of each layer: h, and c of an LSTM, [batch, hidden]


class Recurrent(nn.Module):
    """A layer of LSTM or GRU cells, in one direction or both.

    Args:
      name: the path that begins the canonical names of its parameters.
      cell: "lstm" or "gru".
      inputs: the width of the inputs.
      hidden: the width of the outputs.
      both: whether it runs in both directions, with half of the width in each.

    Attributes:
      rnn: PyTorch's layer.
      canonical: canonical name -> parameter.
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
          inputs: [time, batch, inputs].
          lengths: the length of each row, whose padding is skipped; None if no row is padded.
          state: the state before the first step, as PyTorch takes it; None for zeros.
        """
        if lengths is None:
            outputs, last = self.rnn(inputs, state)
        else:
            packed = pack_padded_sequence(inputs, lengths, enforce_sorted=False)
            outputs, last = self.rnn(packed, state)
            outputs, _ = pad_packed_sequence(outputs, total_length=len(inputs))
        parts = last if isinstance(last, tuple) else (last,)
        return outputs, tuple(torch.cat(list(part), dim=1) for part in parts)


def _torch_state(parts: tuple[Tensor, ...]) -> Any:
    """Return a layer's state as PyTorch takes it, from its parts [batch, hidden]."""
    unsqueezed = tuple(part.unsqueeze(0).contiguous() for part in parts)
    return unsqueezed if len(unsqueezed) == 2 else unsqueezed[0]


def _real_rows(inputs: Tensor, lengths: Tensor) -> Tensor:
    """Return the real steps of [time, batch, ...] as rows, time varying slowest."""
    real = torch.arange(len(inputs)).unsqueeze(1) < lengths
    return inputs[real]


class LanguageModel(nn.Module):
    """The recurrent language model; see `language_model` in tf_impl/networks.py."""

    def __init__(self, model: LanguageModelSpec):
        super().__init__()
        self.embed = nn.Embedding(model.vocabulary_size, model.embedding_size)
        self.softmax = nn.Linear(model.hidden_size, model.vocabulary_size)
        self.layers = nn.ModuleList(
            Recurrent(
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
        hidden = masked(self.embed(feed["tokens"].T), feed, "embedded")
        states = []
        for k, layer in enumerate(self.layers):
            before = feed["h"][:, k], feed["c"][:, k]
            hidden, after = recurrent_layer(layer, hidden, feed["lengths"], before)
            hidden = masked(hidden, feed, f"lstm_{k}")
            states.append(after)
        loss = summed_loss(self.softmax, hidden, feed["targets"], feed["lengths"])
        return loss * feed["scale"], joined(states)


def recurrent_layer(
    layer: Recurrent, inputs: Tensor, lengths: Tensor, before: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a layer of the language model over a batch whose rows may be padded.

    Args:
      layer: the layer.
      inputs: [time, batch, inputs].
      lengths: the number of real tokens of each row, which may be zero.
      before: the parts of the state before the batch, each [batch, hidden].

    Returns:
      Outputs [time, batch, hidden], and the parts of the state after the batch.
    """
    shortest = int(lengths.min())
    packed = None if shortest == len(inputs) else lengths.clamp(min=1)
    hidden, after = layer(inputs, packed, _torch_state(before))
    if shortest == 0:  # rows without a token cannot be packed; they keep their state
        is_empty = (lengths == 0).unsqueeze(1)
        after = tuple(torch.where(is_empty, b, a) for b, a in zip(before, after, strict=True))
    return hidden, after


def summed_loss(
    projection: nn.Linear, hidden: Tensor, targets: Tensor, lengths: Tensor
) -> Tensor:
    """Return the sum of the losses of the real tokens.

    Args:
      projection: the projection to the vocabulary.
      hidden: [time, batch, hidden].
      targets: [batch, time].
      lengths: the number of real tokens of each row.
    """
    if int(lengths.min()) == len(hidden):
        rows, classes = hidden.flatten(0, 1), targets.T.flatten()
    else:
        rows, classes = _real_rows(hidden, lengths), _real_rows(targets.T, lengths)
    return F.cross_entropy(projection(rows), classes, reduction="sum")


class Seq2seq(nn.Module):
    """The encoder, and the decoder with attention; see `seq2seq` in tf_impl/networks.py."""

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
            Recurrent(
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
                Recurrent(name, model.cell, width, size)
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
        *source, states = self.read_source(feed)
        embedded = masked(self.target(feed["tokens"].T), feed, "target_embedded")
        decode = self._decode_with_feeding if self.model.input_feeding else self._decode
        outputs = decode(embedded, states, feed, source)
        outputs = _real_rows(masked(outputs, feed, "attentional"), lengths)
        targets = _real_rows(feed["targets"].T, lengths)
        losses = F.cross_entropy(self.softmax(outputs), targets, reduction="sum")
        return losses * feed["scale"], joined(states)

    def read_source(self, feed: Tensors) -> tuple[Tensor, Tensor, Tensor, States]:
        """Encode the questions of a feed.

        Returns:
          What the attention reads, [batch, source_time, hidden]; its keys, likewise; which
          positions are padding, [batch, source_time]; the state of each layer.
        """
        memory, states = self._encode(feed)
        keys = memory if self.model.attention == "dot" else self.memory(memory)
        if self.model.attention == "scaled":
            keys = keys * self.scale
        is_padding = torch.arange(memory.shape[1]) >= feed["source_lengths"].unsqueeze(1)
        return memory, keys, is_padding, states

    def decoder_step(
        self, embedded: Tensor, states: States, fed: Tensor, source: Sequence[Tensor]
    ) -> tuple[Tensor, States]:
        """Run the decoder for one step without dropout; return its output and the states.

        Args:
          embedded: the embedded token of each row, [batch, embedding].
          states: the state of each layer before the step.
          fed: the output of the previous step, [batch, hidden]; zero before the first.
          source: memory, keys and padding, as `read_source` returns them.
        """
        if self.model.input_feeding:
            context, after = self._feeding_step(embedded, states, fed, source, {})
            return self._attentional(context, after[-1][0]), after
        below, after = embedded.unsqueeze(0), []
        for layer, before in zip(self.decoder, states, strict=True):
            below, state = layer(below, state=_torch_state(before))
            after.append(state)
        context = self._attend(below.transpose(0, 1), *source).squeeze(1)
        return self._attentional(context, below[0]), after

    def _encode(self, feed: Tensors) -> tuple[Tensor, States]:
        hidden, states = self.source(feed["source"].T), []
        for k, layer in enumerate(self.encoder):
            hidden = masked(hidden, feed, f"encoder_{k - 1}" if k else "source_embedded")
            hidden, state = layer(hidden, feed["source_lengths"])
            states.append(state)
        return hidden.transpose(0, 1), states

    def _decode(
        self, inputs: Tensor, states: States, feed: Tensors, source: Sequence[Tensor]
    ) -> Tensor:
        for k, layer in enumerate(self.decoder):
            hidden, _ = layer(inputs, state=_torch_state(states[k]))
            inputs = masked(hidden, feed, f"decoder_{k}")
        context = self._attend(hidden.transpose(0, 1), *source).transpose(0, 1)
        return self._attentional(context, hidden)

    def _decode_with_feeding(
        self, inputs: Tensor, states: States, feed: Tensors, source: Sequence[Tensor]
    ) -> Tensor:
        masks = {k: feed.get(f"mask/decoder_{k}") for k in range(len(states) - 1)}
        fed = torch.zeros_like(states[-1][0])
        contexts, tops, outputs = [], [], []
        for t, x in enumerate(inputs):
            masks_now = {k: mask[:, t] for k, mask in masks.items() if mask is not None}
            context, states = self._feeding_step(x, states, fed, source, masks_now)
            contexts.append(context)
            tops.append(states[-1][0])
            if self.model.attention != "bahdanau":  # the output is needed for the next step
                fed = self._attentional(context, tops[-1])
                outputs.append(fed)
        if outputs:
            return torch.stack(outputs)
        return self._attentional(torch.stack(contexts), torch.stack(tops))

    def _feeding_step(
        self,
        x: Tensor,
        states: States,
        fed: Tensor,
        source: Sequence[Tensor],
        masks: Mapping[int, Tensor],
    ) -> tuple[Tensor, States]:
        """Return the context and the states after a step whose bottom cell reads attention."""
        attends_first, states = self.model.attention == "bahdanau", list(states)
        if attends_first:
            context = fed = self._attend(states[-1][0].unsqueeze(1), *source).squeeze(1)
        below = torch.cat([x, fed], dim=1)
        for k, cell in enumerate(self.decoder):
            state = cell(below, states[k] if len(states[k]) == 2 else states[k][0])
            states[k] = state if isinstance(state, tuple) else (state,)
            below = states[k][0] * masks[k] if k in masks else states[k][0]
        if not attends_first:
            context = self._attend(states[-1][0].unsqueeze(1), *source).squeeze(1)
        return context, states

    def _attentional(self, context: Tensor, top: Tensor) -> Tensor:
        return torch.tanh(self.output(torch.cat([context, top], dim=-1)))

    def _attend(
        self, queries: Tensor, memory: Tensor, keys: Tensor, is_padding: Tensor
    ) -> Tensor:
        """Return a context for each query, [batch, time, hidden] like the queries."""
        if self.model.attention == "bahdanau":
            fit = torch.tanh(self.query(queries).unsqueeze(2) + keys.unsqueeze(1))
            scores = fit @ self.score
        else:
            scores = queries @ keys.transpose(1, 2)
        scores = scores.masked_fill(is_padding.unsqueeze(1), -torch.inf)
        return torch.softmax(scores, dim=2) @ memory


def masked(inputs: Tensor, feed: Tensors, name: str) -> Tensor:
    """Multiply [time, batch, width] by its dropout mask, if there is one."""
    mask = feed.get(f"mask/{name}")
    return inputs if mask is None else inputs * mask.transpose(0, 1)


def joined(states: States) -> Tensors:
    """Return the state of all layers by name, each part [batch, layers, hidden]."""
    parts = zip(*states, strict=True)
    return {n: torch.stack(part, dim=1) for n, part in zip("hc", parts, strict=False)}
