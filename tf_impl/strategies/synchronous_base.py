"""The base of the synchronous strategies, in which all replicas take every step together.

Import this only after `load_engine`.
"""

from contextlib import contextmanager

import numpy as np
import tensorflow as tf

import tf_impl
from parity.base.machine import replicas_at_once
from parity.twins.processes.gathering import distances_of_replicas
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import (
    StepResult,
    Taps,
    join_activations,
    recorded_activations,
    split_feeds,
)
from parity.twins.training.strategy import calls_within, definition
from tf_impl.decode import Decoder
from tf_impl.devices import replica_devices
from tf_impl.kernels import use_kernels
from tf_impl.networks import Inputs
from tf_impl.optimizers import apply_update, clip_by_global_norm
from tf_impl.profiler import operation_phases, read_profile
from tf_impl.weights import from_framework, load_snapshot, read_snapshot

tf1 = tf.compat.v1


class Synchronous:
    """Builds a network and its update on some replicas, and runs its steps.

    A strategy is a subclass that decides how the replicas are built and how their gradients are
    combined. Its public methods and attributes are those of `Strategy`, which describes them:
    parity/twins/training/strategy.py.
    """

    framework = "tensorflow"
    stages = 1  # devices of a replica, which its layers are spread over
    micro_batches = 1  # parts of a replica, each of them a tower

    def __init__(self, spec, build, entry):
        self.spec, self.build, self.entry = spec, build, entry
        self.replicas = build.replicas
        self._own = build.group.own(build.replicas)  # the replicas of this process
        self._decoder = None
        self._profile = None  # a list of each step's RunMetadata while a run is profiled
        self._make()

    def _make(self):
        """Build the network and its update, and load the initial weights."""
        build = self.build
        replicas = self._own.stop - self._own.start
        devices = replicas * self.stages
        self._devices = replica_devices(build.device, replicas, self.stages)
        self._graph = tf.Graph()
        with self._graph.as_default():
            with use_kernels(self.build.kernels):
                self._build()
            self._session = tf1.Session(config=self._config(devices))
        self._graph.finalize()
        self.load(initial_snapshot(self.spec))

    def _config(self, devices):
        build = self.build
        config = tf1.ConfigProto(
            device_count={"CPU": devices if build.device == "cpu" else 1},
            intra_op_parallelism_threads=build.threads,
            inter_op_parallelism_threads=replicas_at_once(devices, build.device),
            allow_soft_placement=True,
            log_device_placement=build.log_device_placement,
        )
        # differs: a session would rewrite its graph for each set of tensors that it is asked
        # for, which on a CPU makes none faster and takes up to a quarter of a short training
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        return config

    def _build(self):
        spec = self.spec
        self._feeds = _feeds(spec, masks=True)
        towers = (self._own.stop - self._own.start) * self.micro_batches
        self._sizes = tf1.placeholder(tf.int32, [towers], "sizes")
        self._outputs, shares = self._towers(self._feeds)
        self._parameters = tf1.trainable_variables()
        self._losses = [each.loss for each in self._outputs]
        losses = [loss[0] for loss in self._losses]
        self._gradients = self._combine(losses, self._parameters, shares)
        slots = self._build_update(losses)
        if self.build.evaluates:
            self._build_evaluation()
        self._keep_variables(slots)

    def _build_update(self, losses):
        """Make the update, which waits for all losses; return the optimiser's state by name."""
        spec = self.spec
        self._clipped, self._norm = clip_by_global_norm(
            self._gradients, spec.training.clip_norm
        )
        # Every tower reads the weights before they change, even one that a mistake leaves out
        # of the gradient: its forward pass would otherwise depend on thread timing.
        with tf.control_dependencies(losses):
            self._learning_rate, slots, self._update = apply_update(
                spec.training, self._parameters, self._clipped
            )
        return slots

    def _build_evaluation(self):
        self._evaluation_feeds = _feeds(self.spec, masks=False)
        self._evaluation, _ = self._towers(self._evaluation_feeds)

    def _keep_variables(self, slots):
        """Make what reads and assigns the parameters and the optimiser state.

        Args:
          slots: snapshot name -> the variable that stores it.
        """
        spec, names = self.spec, [variable.op.name for variable in self._parameters]
        if sorted(names) != sorted(parameter.name for parameter in parameters(spec)):
            raise ValueError(
                f"the graph trains {names}; parity/twins/spec/parameters.py differs"
            )
        by_name = {f"weight/{variable.op.name}": variable for variable in self._parameters}
        variables = {f"weight/{p.name}": by_name[f"weight/{p.name}"] for p in parameters(spec)}
        variables |= slots
        self._reads, self._assignments = {}, {}
        for name, variable in variables.items():
            value = tf1.placeholder(variable.dtype, variable.shape)
            self._reads[name] = variable.read_value()
            self._assignments[name] = value, variable.assign(value).op

    def _towers(self, feeds, devices=None, sizes=None):
        """Build the network on the rows of each replica, or of each of its micro-batches.

        Args:
          feeds: name -> placeholder of the global batch.
          devices: one device name per replica; None for those of all replicas.
          sizes: the number of rows of each of these replicas, int32 [replicas]; None for those
            of all replicas.

        Returns:
          Two tuples with one per tower: the Outputs, and the tower's share of the batch's real
          tokens [].
        """
        spec = self.spec
        network = NETWORKS[spec.network]
        mask_axes, builder = network.masks(spec.model), network.builder(self.framework)

        def build_tower(scale, **parts):
            # differs: the rows are split in the graph, which also cuts off each tower's padding
            longest = {
                axis: tf.maximum(tf.reduce_max(parts[lengths]), 1)
                for axis, lengths in network.lengths.items()
            }
            batch = {
                name: parts[name] if len(axes) == 1 else parts[name][:, : longest[axes[1]]]
                for name, axes in network.batch.items()
            }
            masks = {
                name: parts[f"mask/{name}"][:, : longest[axes[1]]]
                for name, axes in mask_axes.items()
                if f"mask/{name}" in parts
            }
            state = {name: parts[name] for name in network.state(spec.model)}
            inputs = Inputs(batch, state, masks, scale, Taps())
            tokens = tf.cast(tf.reduce_sum(parts["lengths"]), scale.dtype)
            return builder(spec.model, inputs), tokens * scale[0]

        split = {name: tensor for name, tensor in feeds.items() if name != "scale"}
        shared = {"scale": feeds["scale"]}
        devices = self._devices if devices is None else devices
        sizes = self._sizes if sizes is None else sizes
        towers = self._replicate(build_tower, devices, sizes, shared, **split)
        return tuple(zip(*towers, strict=True))

    def _replicate(self, function, devices, sizes, shared, **inputs):
        """Call a function once per tower, with that tower's rows and on its devices.

        A replica is a tower, and with micro-batches each of them is one.

        Args:
          function: builds part of the graph from one tensor per input, and returns anything.
          devices: one device name for each stage of each replica.
          sizes: the number of rows of each tower, int32 [towers].
          shared: inputs that every tower gets whole.
          **inputs: tensors whose first axis is split.

        Returns:
          A list with the function's result for each tower.
        """
        raise NotImplementedError

    def _combine(self, losses, parameters, shares):
        """Return the gradient of the global loss, one dense tensor per parameter.

        Args:
          losses: one [] per tower; their sum is the global loss.
          parameters: list of trainable variables.
          shares: one [] per tower, its real tokens divided by those of the global batch.
        """
        raise NotImplementedError

    def load(self, snapshot):
        load_snapshot(self._session, self._assignments, snapshot)

    def snapshot(self):
        return read_snapshot(self._session, self._reads)

    def replica_distances(self):
        copies = self._local_copies()
        return distances_of_replicas(self.build.group, copies) if copies else {}

    def step(self, inputs, state, learning_rate, record=False):
        values = self._run_step(inputs, state, learning_rate, record)
        tensors = self._record(inputs, values) if record else {}
        return self._result(values, tensors)

    def _run_step(self, inputs, state, learning_rate, record):
        """Take the step that `step` describes; return what `_result` and `_record` read.

        Returns:
          Name -> the losses, one array per tower; the state, name -> array for each tower; and
          the norm. With `record` also the activations, name -> one array per tower, and the
          gradient before and after clipping, parameter -> array.
        """
        outputs = self._outputs
        fetches = {
            "losses": self._losses,
            "state": [each.state for each in outputs],
            "norm": self._norm,
            "update": self._update,
        }
        if record:
            by_tower = {
                name: [each.activations[name] for each in outputs]
                for name in outputs[0].activations
            }
            fetches["activations"] = recorded_activations(self.spec, by_tower, inputs)
            fetches["gradient"] = self._by_parameter(self._gradients)
            fetches["clipped_gradient"] = self._by_parameter(self._clipped)
        feeds = self._fill(self._feeds, inputs, state) | {self._learning_rate: learning_rate}
        return self._run(fetches, feeds)

    def evaluate(self, inputs, state):
        return self._result(self._run_evaluation(inputs, state), {})

    def _run_evaluation(self, inputs, state):
        outputs = self._evaluation
        fetches = {
            "losses": [each.loss for each in outputs],
            "state": [each.state for each in outputs],
        }
        feeds = self._fill(self._evaluation_feeds, inputs, state)
        return self._session.run(fetches, feeds)

    def _local_copies(self):
        """Return a snapshot of each replica of this process; none if all share one copy."""
        # differs: the towers share one copy; building the graph checked the variables' names
        return []

    def sources(self):
        # differs: an operation keeps the calls that made it
        outputs = self._outputs[0]
        activations = {**outputs.state, **outputs.activations}
        made = {f"forward/{name}": each for name, each in activations.items()}
        made |= {"loss": outputs.loss, "gradient_norm": self._norm}
        made |= {"clipped_gradient": self._clipped[0]}
        made |= dict.fromkeys(("optimizer", "weight"), self._update)
        calls = {name: getattr(each, "op", each).traceback for name, each in made.items()}
        calls |= {f"gradient/{name}": each for name, each in self._parameter_calls().items()}
        found = {
            name: calls_within(map(_frame, each), tf_impl.__file__)
            for name, each in calls.items()
        }
        return found | {"decode": definition(Decoder)}

    def _parameter_calls(self):
        """Return canonical name -> the calls that made a parameter."""
        return {each.op.name: each.op.traceback for each in self._parameters}

    @contextmanager
    def profile(self):
        events, self._profile = [], []
        yield events
        profile, self._profile = self._profile, None
        events += read_profile(profile, operation_phases(self._session.graph))

    def decoder(self):
        if self._decoder is None:
            self._decoder = Decoder(self.spec, self.build)
        self._decoder.load(self.snapshot())
        return self._decoder

    def _run(self, fetches, feeds):
        # differs: the profiler is switched on for each step, and returns that step's records
        if self._profile is None:
            return self._session.run(fetches, feeds)
        options = tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
        self._profile.append(tf1.RunMetadata())
        return self._session.run(fetches, feeds, options, self._profile[-1])

    def _by_parameter(self, tensors):
        names = [variable.op.name for variable in self._parameters]
        return dict(zip(names, tensors, strict=True))

    def _record(self, inputs, values):
        activations = values["activations"]
        tensors = join_activations(self.spec, activations, inputs, self.micro_batches)
        for kind in ("gradient", "clipped_gradient"):
            for parameter, value in values[kind].items():
                name = f"{kind}/{parameter}"
                tensors[name] = from_framework(name, value)
        distances = self.replica_distances()
        return tensors | self.snapshot() | {f"replicas/{k}": v for k, v in distances.items()}

    def _fill(self, placeholders, inputs, state):
        # differs: the global batch is fed as a whole and split in the graph
        (feed,) = split_feeds(self.spec, inputs, state, 1)
        filled = {placeholders[name]: array for name, array in feed.items()}
        sizes = split_rows(inputs.rows, self.replicas, self.micro_batches)
        return filled | {self._sizes: sizes}

    def _result(self, values, tensors):
        state = {
            name: np.concatenate([part[name] for part in values["state"]])
            for name in values["state"][0]
        }
        losses = np.concatenate(values["losses"]).reshape(-1, self.micro_batches).sum(axis=1)
        norm = float(values.get("norm", 0.0))
        return StepResult(losses, state, norm, tensors)


def _frame(call):
    """Return file, line and function of a call; none for what makes any parameter."""
    is_parameter = call.name == "parameter"
    return ("", 0, "") if is_parameter else (call.filename, call.lineno, call.name)


def feed_types(spec, masks):
    """Return the dtype and the shape of each array that a step is fed, by name.

    Args:
      spec: Spec.
      masks: whether dropout masks are fed, if the network has dropout.
    """
    network, dtype = NETWORKS[spec.network], spec.training.dtype
    feeds = {name: ("int64", [None] * len(axes)) for name, axes in network.batch.items()}
    for name, shape in network.state(spec.model).items():
        feeds[name] = dtype, [None, *shape]
    if masks and spec.model.keep < 1:
        for name, axes in network.masks(spec.model).items():
            feeds[f"mask/{name}"] = dtype, [None, None, axes[2]]
    return feeds | {"scale": (dtype, [1])}


def _feeds(spec, masks):
    return {
        name: tf1.placeholder(dtype, shape, name)
        for name, (dtype, shape) in feed_types(spec, masks).items()
    }
