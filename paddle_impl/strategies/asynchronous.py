"""Asynchronous training: every replica is a worker, with a copy of the weights of its own.

A worker reads the shared weights, computes the gradient of its own rows with its copy, and
updates the shared weights with the clipped gradient, while the other workers do the same. The
optimiser's state is shared as well. training/asynchronous_run.py runs the workers.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle

from paddle_impl.executor import ParallelExecutor, keep_operations
from paddle_impl.strategies.synchronous_base import Synchronous
from paddle_impl.weights import from_framework
from parity.twins.spec.step_arrays import (
    StepResult,
    join_activations,
    recorded_activations,
    split_feeds,
)


class Asynchronous(Synchronous):
    """Runs each replica as a worker, with weights of its own beside the shared ones."""

    def _executor(self, program, loss_name, share_variables_from=None):
        # differs: a worker's copy is a scope, in which its weights hide the shared ones
        if loss_name is None:
            return _Evaluation(program, self._places, self._scope)
        kept = [variable.name for variable in self._clipped]
        count = len(program.global_block().ops) - self._update_operations
        parameters = [parameter.name for parameter in self._parameters]
        self._workers = [
            _Worker(program, count, loss_name, parameters, kept, place, self._scope)
            for place in self._places
        ]
        return _Shared(self._scope, self.replicas)

    def read(self, worker):
        self._workers[worker].read()

    def compute(self, part, state, record=False):
        outputs, inputs, worker = self._outputs, part.inputs, self._workers[part.worker]
        fetches = [outputs.loss, self._norm, *outputs.state.values()]
        activations = {}
        if record:
            activations = recorded_activations(self.spec, outputs.activations, inputs)
            fetches += [*activations.values(), *self._gradients, *self._clipped]
        (feed,) = split_feeds(self.spec, inputs, state, 1)
        names = [variable.name for variable in fetches]
        loss, norm, *values = worker.compute(feed, names)
        found = dict(zip([*outputs.state, *activations], values, strict=False))
        tensors = {}
        if record:
            by_replica = {name: [found[name]] for name in activations}
            tensors = join_activations(self.spec, by_replica, inputs)
            tensors |= self._recorded_gradients(values[len(found) :])
            for name, value in worker.copies().items():
                tensors[f"read/{name}"] = from_framework(f"read/{name}", value)
        return StepResult(
            loss, {name: found[name] for name in outputs.state}, norm.item(), tensors
        )

    def update(self, worker, learning_rate):
        self._set_learning_rate(learning_rate)
        self._workers[worker].update()


class _Worker:
    """Runs one worker's part of the program.

    Args:
      program: the program of a whole step.
      count: the number of its operations before those of the update.
      loss_name: the variable that its backward pass differentiates.
      parameters: the names of the parameters.
      kept: the names of the clipped gradients.
      place: where the worker computes.
      shared: the scope of the shared variables.
    """

    def __init__(self, program, count, loss_name, parameters, kept, place, shared):
        self._parameters, self._kept, self._place = parameters, kept, place
        compute, self._update = program.clone(), program.clone()
        operations = len(program.global_block().ops)
        for part, used in (
            (compute, range(count)),
            (self._update, range(count, operations)),
        ):
            keep_operations(part.global_block(), used)
            for name in kept:  # or it would be gone at the end of the run
                part.global_block().var(name).persistable = True
        self._shared = shared
        self._own = _scope_within(shared, [*parameters, *kept])
        self._updating = _scope_within(shared, kept)
        # not an Executor: in its second run a loop over time would find the arrays of the first
        self._engine = ParallelExecutor(compute, loss_name, [place], self._own)
        self._executor = paddle.static.Executor(place)

    def read(self):
        """Copy the shared weights to the worker's scope."""
        for name in self._parameters:
            shared = self._shared.find_var(name).get_tensor()
            self._own.find_var(name).get_tensor()._copy_from(shared, self._place)

    def copies(self):
        """Return the weights that the worker read last, name -> array."""
        return {
            name: np.array(self._own.find_var(name).get_tensor()) for name in self._parameters
        }

    def compute(self, feed, fetch):
        """Compute the worker's gradient, and return the arrays of the given names."""
        return [value for (value,) in self._engine.run(fetch, [feed])]

    def update(self):
        """Update the shared variables with the gradient that was computed last."""
        for name in self._kept:
            gradient = self._own.find_var(name).get_tensor()
            self._updating.find_var(name).get_tensor()._share_data_with(gradient)
        self._executor.run(self._update, scope=self._updating)


class _Shared:
    """Stands for an executor whose replicas share one copy of all variables."""

    def __init__(self, scope, replicas):
        self._scope, self._replicas = scope, replicas

    def local_scopes(self):
        return [self._scope] * self._replicas


class _Evaluation:
    """Runs a program without an update on every replica's rows, with the shared weights."""

    def __init__(self, program, places, shared):
        self._replicas = [
            ParallelExecutor(program.clone(), None, [place], _scope_within(shared))
            for place in places
        ]
        self._threads = ThreadPoolExecutor(len(places))

    def run(self, fetch, feeds):
        """Return for each name a list with the value on each replica."""

        def run(replica, feed):
            return replica.run(fetch, [feed])

        found = self._threads.map(run, self._replicas, feeds)
        return [[value for (value,) in values] for values in zip(*found, strict=True)]


def _scope_within(shared, names=()):
    """Return a scope that has some variables of its own, and all others of the shared scope."""
    scope = shared.new_scope()
    # or the threads would share these two, and fetch each other's results
    scope.var("feed")
    scope.var("fetch")
    for name in names:
        scope.var(name).get_tensor()
    return scope
