"""Model parallelism in PyTorch: a process per stage, and `torch.distributed.pipelining`.

The layers are divided into the stages of the strategy `layers`, and the rows into as many
micro-batches. The stages hand activations and gradients over by gloo.

Source: Huang et al. 2019, arXiv:1811.06965 (GPipe);
docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from parity.base.errors import UsageError
from parity.twins.peers.pytorch_networks import (
    Recurrent,
    Tensors,
    joined,
    masked,
    recurrent_layer,
    summed_loss,
)
from parity.twins.peers.pytorch_processes import Processes
from parity.twins.peers.pytorch_replica import Feed, Replica, arrays, tensors
from parity.twins.peers.pytorch_strategy import PytorchStrategy
from parity.twins.spec.parameters import snapshot_names
from parity.twins.spec.spec import Spec
from parity.twins.spec.stages import stages_of
from parity.twins.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.strategy import Build

_CPU = torch.device("cpu")


class Pipeline(PytorchStrategy):
    """Trains the language model with its layers spread over several processes.

    Raises:
      UsageError: for another network, for several replicas, for more stages than layers, and
        for micro-batches with different numbers of rows.
    """

    def __init__(self, spec: Spec, build: Build, entry: StrategyEntry):
        """Build each stage in its process."""
        if spec.network != "language-model":
            raise UsageError(
                f"--network is {spec.network}; allowed for pytorch's pipeline: language-model"
            )
        if build.replicas != 1:
            raise UsageError(
                f"--replicas is {build.replicas}; allowed for pytorch's pipeline: 1"
            )
        stages, micro_batches = build.settings.stages, build.settings.micro_batches
        assert stages is not None
        assert micro_batches is not None
        stages_of(spec, stages)  # refuses too many before any process is started
        self._micro_batches = micro_batches
        self._check_rows(spec.training.batch_size)
        arguments = [
            (spec, build.threads, stage, stages, micro_batches) for stage in range(stages)
        ]
        super().__init__(spec, build, entry, Processes(_Stage, arguments))

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set weights and optimiser state of every stage, by canonical name and layout."""
        self.processes.call_all("load", [(snapshot,)] * self._stages)

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
        record: bool = False,
    ) -> StepResult:
        """Train on one global batch.

        Raises:
          UsageError: if the micro-batches would have different numbers of rows.
        """
        self._check_rows(inputs.rows)
        (feed,) = split_feeds(self.spec, inputs, state, 1)
        results = self.processes.call_all("step", [(feed, learning_rate)] * self._stages)
        losses, states, norms = zip(*results, strict=True)
        return StepResult(np.array([sum(losses)]), _joined_layers(states), norms[0], {})

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        """Compute the loss of one global batch, without dropout and without an update."""
        (feed,) = split_feeds(self.spec, inputs, state, 1)
        hidden, states = feed["tokens"], []
        for stage in range(self._stages):  # one after another: it is not timed
            hidden, after = self.processes.call(stage, "forward", feed, hidden)
            states.append(after)
        return StepResult(hidden, _joined_layers(states), 0.0, {})

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return weights and optimiser state by canonical name, in canonical layout."""
        found: dict[str, np.ndarray] = {}
        for part in self.processes.call_all("snapshot"):
            found |= part
        return {name: found[name] for name in snapshot_names(self.spec)}

    def _check_rows(self, rows: int) -> None:
        if rows % self._micro_batches:
            raise UsageError(
                f"a batch has {rows} rows and --micro-batches is {self._micro_batches}; "
                "allowed for pytorch's pipeline: a divisor of the rows, because all its "
                "micro-batches have one shape"
            )

    @property
    def _stages(self) -> int:
        assert self.build.settings.stages is not None
        return self.build.settings.stages


class _Layers(nn.Module):
    """Some consecutive layers of the language model.

    Args:
      spec: the network.
      names: the names of the layers, in the order of computation.

    Attributes:
      canonical: canonical name -> parameter of `embed` and `softmax`; those of recurrent layers
        have their own.
      states: the state after each micro-batch since the list was emptied.
    """

    def __init__(self, spec: Spec, names: list[str]):
        super().__init__()
        model = spec.model
        self.canonical: dict[str, nn.Parameter] = {}
        self.embed = self.softmax = None
        self.recurrent = nn.ModuleDict()
        for name in names:
            if name == "embed":
                self.embed = nn.Embedding(model.vocabulary_size, model.embedding_size)
                self.canonical["embed/table"] = self.embed.weight
            elif name == "softmax":
                self.softmax = nn.Linear(model.hidden_size, model.vocabulary_size)
                self.canonical["softmax/kernel"] = self.softmax.weight
                self.canonical["softmax/bias"] = self.softmax.bias
            else:
                inputs = model.embedding_size if name == "lstm_0" else model.hidden_size
                self.recurrent[name] = Recurrent(name, "lstm", inputs, model.hidden_size)
        self.states: list[Tensors] = []

    def forward(self, inputs: Tensor, **feed: Tensor) -> Tensor:
        """Return what the next stage reads, or the micro-batch's share of the loss, [1].

        Args:
          inputs: tokens [rows, time], or the outputs of the stage before [time, rows, hidden].
          **feed: the rest of the micro-batch's rows.
        """
        hidden = inputs
        if self.embed is not None:
            hidden = masked(self.embed(inputs.T), feed, "embedded")
        states = []
        for name, layer in self.recurrent.items():
            k = int(name.removeprefix("lstm_"))
            before = feed["h"][:, k], feed["c"][:, k]
            hidden, after = recurrent_layer(layer, hidden, feed["lengths"], before)
            hidden = masked(hidden, feed, name)
            states.append(tuple(part.detach() for part in after))
        self.states.append(joined(states) if states else {})
        if self.softmax is None:
            return hidden
        loss = summed_loss(self.softmax, hidden, feed["targets"], feed["lengths"])
        return loss * feed["scale"][:1]


class _Stage(Replica):
    """One stage of the pipeline, and the optimiser of its layers.

    Args:
      spec: the network, its text and its training.
      threads: the number of CPU threads.
      stage: the number of the stage.
      stages: the number of stages.
      micro_batches: the number of micro-batches.
    """

    def __init__(self, spec: Spec, threads: int, stage: int, stages: int, micro_batches: int):
        names = stages_of(spec, stages)[stage]
        super().__init__(spec, threads, lambda: _Layers(spec, names))
        self._stage, self._stages, self._micro_batches = stage, stages, micro_batches
        self._shape: tuple[int, ...] | None = (
            None  # of the batches that the schedule is made for
        )

    def step(self, feed: Feed, rate: float) -> tuple[float, dict[str, np.ndarray], float]:
        """Train on a batch; return this stage's loss, its state and the gradient norm."""
        rest = self._rest(feed)
        tokens = rest.pop("tokens")
        if self._shape != tuple(tokens.shape):
            self._shape = tuple(tokens.shape)
            self._schedule = self._make_schedule(*tokens.shape)
        self.optimizer.zero_grad(set_to_none=True)
        self.network.states.clear()
        losses: list[Tensor] = []
        inputs = (tokens,) if self._stage == 0 else ()
        target = rest["targets"] if self._is_last else None
        self._schedule.step(*inputs, target=target, losses=losses, **rest)
        norm = self._clip()
        self.update(rate)
        loss = sum(each.item() for each in losses)
        parts = [arrays(state) for state in self.network.states]
        state = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return loss, state, norm

    def forward(
        self, feed: Feed, hidden: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the outputs of this stage's layers for a whole batch, and their state."""
        rest = self._rest(feed)
        rest.pop("tokens")
        self.network.states.clear()
        with torch.no_grad():
            outputs = self.network(torch.from_numpy(hidden), **rest)
        return outputs.numpy(), arrays(self.network.states[0])

    @property
    def _is_last(self) -> bool:
        return self._stage == self._stages - 1

    def _rest(self, feed: Feed) -> Tensors:
        """Return the arrays of a feed with a row for each row of the batch, as the schedule
        divides all of them."""
        found = tensors(feed)
        return found | {"scale": found["scale"].expand(len(found["tokens"]))}

    def _make_schedule(self, rows: int, time: int) -> ScheduleGPipe:
        """Return the schedule for batches of one shape."""
        rows //= self._micro_batches
        inputs = torch.empty(rows, time, dtype=torch.int64)
        if self._stage:
            inputs = self._outputs_like(self._stage - 1, rows, time)
        # with the shapes given, no stage has to run in order to find them out
        stage = PipelineStage(
            self.network,
            self._stage,
            self._stages,
            _CPU,
            input_args=(inputs,),
            output_args=(self._outputs_like(self._stage, rows, time),),
        )
        return ScheduleGPipe(stage, self._micro_batches, loss_fn=_loss, scale_grads=False)

    def _outputs_like(self, stage: int, rows: int, time: int) -> Tensor:
        """Return a tensor shaped as a stage's outputs for a micro-batch."""
        if stage == self._stages - 1:
            return torch.empty(1, requires_grad=True)
        model, names = self.spec.model, stages_of(self.spec, self._stages)[stage]
        width = model.embedding_size if names == ["embed"] else model.hidden_size
        return torch.empty(time, rows, width, requires_grad=True)

    def _clip(self) -> float:
        """Clip the gradient by its norm over all stages, and return the norm."""
        norms = [torch.linalg.vector_norm(each.grad) for each in self.trained]
        square = torch.stack(norms).square().sum()
        if self._stages > 1:
            torch.distributed.all_reduce(square)
        norm = square.sqrt()
        nn.utils.clip_grads_with_norm_(self.trained, self.spec.training.clip_norm, norm)
        return float(norm)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the loss that the last stage has computed already."""
    return output.sum()


def _joined_layers(states: Any) -> dict[str, np.ndarray]:
    """Return the states of the stages as one, the layers in the order of computation."""
    kept = [state for state in states if state]
    return {name: np.concatenate([each[name] for each in kept], axis=1) for name in kept[0]}
