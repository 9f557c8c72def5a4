"""The base of the synchronous strategies, in which all replicas take every step together.

Import this only after `load_engine`.
"""

import os
import re
from contextlib import contextmanager

import numpy as np
import paddle

import paddle_impl
from paddle_impl.decode import Decoder
from paddle_impl.devices import replica_devices
from paddle_impl.kernels import use_kernels
from paddle_impl.networks import Inputs
from paddle_impl.optimizers import apply_update, clip_by_global_norm
from paddle_impl.profiler import operation_phases, read_profile
from paddle_impl.program_kernels import replace_operations
from paddle_impl.weights import from_framework, load_snapshot, read_snapshot
from parity.base.process import keep_freed_memory
from parity.twins.processes.gathering import distances_of_replicas
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters
from parity.twins.spec.step_arrays import (
    StepResult,
    Taps,
    join_activations,
    recorded_activations,
    split_feeds,
)
from parity.twins.training.strategy import calls_within, definition

_CALL = re.compile(r'\s*File "(.*)", line (\d+), in (.*)')


class Synchronous:
    """Builds a network and its update on some replicas, and runs its steps.

    A strategy is a subclass that decides how the replicas are built and how their gradients are
    combined. Its public methods and attributes are those of `Strategy`, which describes them:
    parity/twins/training/strategy.py.
    """

    framework = "paddle"
    stages = 1  # devices of a replica, which its layers are spread over
    micro_batches = 1  # parts of a replica, which are computed one after another
    _shares_weights = False  # whether all replicas read one copy of the weights

    def __init__(self, spec, build, entry):
        self.spec, self.build, self.entry = spec, build, entry
        self.replicas = build.replicas
        self._decoder = None
        own = build.group.own(build.replicas)
        self._places = self._own_places(own.stop - own.start)
        if len(self._places) == 1 and os.environ["OMP_NUM_THREADS"] != "1":
            # The other threads wait while one clears the pages of a large tensor. Several
            # replicas would fragment the heap, which was up to 3 times as large.
            keep_freed_memory()
        if build.log_device_placement:
            for number, place in enumerate(self._places, own.start * self.stages):
                replica, stage = divmod(number, self.stages)
                of_stage = f", stage {stage}" if self.stages > 1 else ""
                print(f"replica {replica}{of_stage}: {place}", flush=True)
        self._scope = paddle.static.Scope()
        with (
            use_kernels(self.build.kernels),
            paddle.static.scope_guard(self._scope),
            paddle.utils.unique_name.guard(),
        ):
            self._build()
        self._learning_rate_set = None
        self.load(initial_snapshot(spec))

    def _own_places(self, replicas):
        """Return the places of this process's replicas."""
        return replica_devices(self.build.device, replicas, self.stages)

    def _build(self):
        spec, startup = self.spec, paddle.static.Program()
        program, evaluation = paddle.static.Program(), paddle.static.Program()
        builder = NETWORKS[spec.network].builder(self.framework)
        if self.build.evaluates:
            with paddle.static.program_guard(evaluation, paddle.static.Program()):
                inputs = _inputs(spec, masks=False)
                self._evaluation, _ = self._network(builder, inputs)
        with paddle.static.program_guard(program, startup):
            inputs = _inputs(spec, masks=True)
            self._outputs, objective = self._network(builder, inputs)
            pairs = paddle.static.append_backward(objective)
            self._parameters = [parameter for parameter, _ in pairs]
            with program._optimized_guard([]):
                self._gradients = self._summed([gradient for _, gradient in pairs])
                self._clipped, self._norm = clip_by_global_norm(
                    self._gradients, spec.training.clip_norm
                )
            before = len(program.global_block().ops)
            self._learning_rate, slots = apply_update(
                spec.training, self._parameters, self._clipped
            )
            # they stay the last operations, whatever kernels replace
            self._update_operations = len(program.global_block().ops) - before
        names = {parameter.name for parameter in self._parameters}
        if names != {parameter.name for parameter in parameters(spec)}:
            raise ValueError(
                f"the graph trains {sorted(names)}; parity/twins/spec/parameters.py differs"
            )
        self._variables = {f"weight/{p.name}": [p.name] for p in parameters(spec)} | slots
        self._sources = self._calls(program)  # before kernels replace operations
        if self.build.kernels == "fast":
            on_cpu = isinstance(self._places[0], paddle.CPUPlace)
            for each in (program, evaluation):
                replace_operations(each, spec.training.dtype, on_cpu=on_cpu)
        paddle.static.Executor(self._places[0]).run(startup)
        self._phases = operation_phases(program)
        self._train = self._executor(program, objective.name)
        if self.build.evaluates:
            self._evaluate = self._executor(evaluation, None, share_variables_from=self._train)

    def _network(self, builder, inputs):
        """Build the network; return its Outputs and the scalar to differentiate."""
        outputs = builder(self.spec.model, inputs)
        return outputs, outputs.loss

    def _summed(self, gradients):
        """Return the gradients that are clipped; the executor has summed them already."""
        return gradients

    def _executor(self, program, loss_name, share_variables_from=None):
        """Return an object that runs a program on all replicas, as `ParallelExecutor` does.

        Args:
          program: the static program.
          loss_name: the variable that the backward pass differentiates, or None if the program
            has no backward pass.
          share_variables_from: an executor whose replicas' parameters this one shares.
        """
        raise NotImplementedError

    def load(self, snapshot):
        scopes, places = zip(*self._copies(), strict=True)
        load_snapshot(scopes, places, self._variables, snapshot)

    def snapshot(self):
        return read_snapshot(self._train.local_scopes()[0], self._variables)

    def replica_distances(self):
        if self._shares_weights:
            return {}
        copies = [read_snapshot(scope, self._variables) for scope, _ in self._copies()]
        return distances_of_replicas(self.build.group, copies)

    def step(self, inputs, state, learning_rate, record=False):
        self._set_learning_rate(learning_rate)
        outputs = self._outputs
        fetches = [outputs.loss, *outputs.state.values(), self._norm]
        if record:
            fetches += recorded_activations(self.spec, outputs.activations, inputs).values()
            fetches += [*self._gradients, *self._clipped]
        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)
        values = self._train.run([variable.name for variable in fetches], feeds)
        count = len(outputs.state)
        state, norms = self._joined(inputs, outputs.state, values[1:]), values[1 + count]
        tensors = self._record(inputs, values[2 + count :]) if record else {}
        return StepResult(self._losses(values[0]), state, norms[0].item(), tensors)

    def evaluate(self, inputs, state):
        outputs = self._evaluation
        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)
        fetches = [outputs.loss, *outputs.state.values()]
        losses, *rest = self._evaluate.run([variable.name for variable in fetches], feeds)
        state = self._joined(inputs, outputs.state, rest)
        return StepResult(self._losses(losses), state, 0.0, {})

    def sources(self):
        found = {
            name: calls_within(map(_frame, calls), paddle_impl.__file__)
            for name, calls in self._sources.items()
        }
        return found | {"decode": definition(Decoder)}

    def _calls(self, program):
        """Return name of a tensor -> the calls that made it, kept by operations."""
        operations, outputs = program.global_block().ops, self._outputs
        made = {name: op for op in operations for name in op.output_arg_names}
        read = {name: op for op in reversed(operations) for name in op.input_arg_names}
        activations = {**outputs.state, **outputs.activations}
        found = {f"forward/{name}": made[each.name] for name, each in activations.items()}
        found |= {"loss": made[outputs.loss.name], "gradient_norm": made[self._norm.name]}
        found |= {f"gradient/{each.name}": read[each.name] for each in self._parameters}
        found |= {"clipped_gradient": made[self._clipped[0].name]}
        update = made[self._parameters[0].name]
        found |= dict.fromkeys(("optimizer", "weight"), update)
        return {name: operation.attr("op_callstack") for name, operation in found.items()}

    @contextmanager
    def profile(self):
        from paddle.profiler import Profiler, ProfilerTarget

        events = []
        # without a handler, the profiler would write a file
        with Profiler(targets=[ProfilerTarget.CPU], on_trace_ready=lambda _: None) as profiler:
            yield events
        events += read_profile(profiler.profiler_result.get_data(), self._phases)

    def decoder(self):
        if self._decoder is None:
            self._decoder = Decoder(self.spec, self.build)
        self._decoder.load(self.snapshot())
        return self._decoder

    def _losses(self, parts):
        """Return the loss of each replica, given those of its micro-batches."""
        return np.concatenate(parts).reshape(-1, self.micro_batches).sum(axis=1)

    def _copies(self):
        """Return the scope and the place of each copy of the weights."""
        count = 1 if self._shares_weights else len(self._places)
        return list(zip(self._train.local_scopes()[:count], self._places[:count], strict=True))

    def _record(self, inputs, values):
        names = list(recorded_activations(self.spec, self._outputs.activations, inputs))
        activations = dict(zip(names, values, strict=False))
        tensors = self._join_activations(inputs, activations)
        tensors |= self._recorded_gradients([parts[0] for parts in values[len(names) :]])
        distances = self.replica_distances()
        return tensors | self.snapshot() | {f"replicas/{k}": v for k, v in distances.items()}

    def _recorded_gradients(self, values):
        """Return the gradients of a trace, given those before and then those after clipping."""
        kinds = ("gradient", "clipped_gradient")
        names = [f"{kind}/{each.name}" for kind in kinds for each in self._parameters]
        pairs = zip(names, values, strict=True)
        return {name: from_framework(name, value) for name, value in pairs}

    def _join_activations(self, inputs, activations):
        """Return the activations of all replicas."""
        return join_activations(self.spec, activations, inputs, self.micro_batches)

    def _joined(self, inputs, names, values):
        """Return the state of the rows of all replicas; `values` has a list for each name."""
        return {name: np.concatenate(parts) for name, parts in zip(names, values, strict=False)}

    def _set_learning_rate(self, learning_rate):
        if learning_rate == self._learning_rate_set:
            return
        value = np.full(self._learning_rate.shape, learning_rate, self.spec.training.dtype)
        for scope, place in self._copies():
            scope.find_var(self._learning_rate.name).get_tensor().set(value, place)
        self._learning_rate_set = learning_rate


def _inputs(spec, masks):
    network, dtype = NETWORKS[spec.network], spec.training.dtype
    data = paddle.static.data
    batch = {
        name: data(name, [-1] * len(axes), "int64") for name, axes in network.batch.items()
    }
    state = {
        name: data(name, [-1, *shape], dtype)
        for name, shape in network.state(spec.model).items()
    }
    mask_axes = network.masks(spec.model) if masks and spec.model.keep < 1 else {}
    return Inputs(
        batch=batch,
        state=state,
        masks={
            name: data(f"mask/{name}", [-1, -1, axes[2]], dtype)
            for name, axes in mask_axes.items()
        },
        scale=data("scale", [1], dtype),
        tap=Taps(),
    )


def _frame(line):
    """Return file, line and function of a call, '  File "...", line 3, in f'."""
    found = _CALL.match(line)
    return (found[1], int(found[2]), found[3]) if found else ("", 0, "")
