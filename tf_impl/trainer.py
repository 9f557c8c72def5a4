"""Trains one network on one or several replicas; the engine is ready after `load_engine`."""

import numpy as np
import tensorflow as tf

from parity.initial import initial_snapshot
from parity.parameters import parameters
from parity.replicas import split_rows
from parity.steps import StepResult, join_activations, split_feeds
from tf_impl.networks import NETWORKS, Inputs
from tf_impl.optimizers import apply_update, clip_by_global_norm
from tf_impl.parallel.devices import replica_devices
from tf_impl.parallel.towers import make_parallel, summed_gradients
from tf_impl.weights import from_framework, load_snapshot, read_snapshot

tf1 = tf.compat.v1


class Trainer:
    """Builds a network and its update on some replicas, and runs steps of it.

    Attributes:
      spec: Spec.
      replicas: number of replicas.
    """

    framework = "tensorflow"

    def __init__(self, spec, replicas, device="cpu", threads=1, log_device_placement=False):
        """Build the graph and load the initial weights.

        Args:
          spec: Spec.
          replicas: number of replicas.
          device: "cpu" or "gpu".
          threads: CPU threads of each replica.
          log_device_placement: print which device each replica's parts run on.

        Raises:
          UsageError: if a device is wanted that is not there.
        """
        self.spec, self.replicas = spec, replicas
        self._devices = replica_devices(device, replicas)
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._build()
            self._session = tf1.Session(
                config=tf1.ConfigProto(
                    device_count={"CPU": replicas if device == "cpu" else 1},
                    intra_op_parallelism_threads=threads,
                    inter_op_parallelism_threads=replicas,
                    allow_soft_placement=True,
                    log_device_placement=log_device_placement,
                )
            )
        self._graph.finalize()
        self.load(initial_snapshot(spec))

    def _build(self):
        spec = self.spec
        self._feeds, self._evaluation_feeds = (
            _feeds(spec, masks=True),
            _feeds(spec, masks=False),
        )
        self._sizes = tf1.placeholder(tf.int32, [self.replicas], "sizes")
        self._outputs = self._towers(self._feeds)
        self._parameters = tf1.trainable_variables()
        losses = [outputs.loss[0] for outputs in self._outputs]
        self._gradients = summed_gradients(losses, self._parameters)
        self._clipped, self._norm = clip_by_global_norm(
            self._gradients, spec.training.clip_norm
        )
        self._learning_rate, slots, self._update = apply_update(
            spec.training, self._parameters, self._clipped
        )
        names = [variable.op.name for variable in self._parameters]
        if sorted(names) != sorted(parameter.name for parameter in parameters(spec)):
            raise ValueError(f"the graph trains {names}; parity/parameters.py differs")
        self._evaluation = self._towers(self._evaluation_feeds)
        by_name = {f"weight/{variable.op.name}": variable for variable in self._parameters}
        variables = {f"weight/{p.name}": by_name[f"weight/{p.name}"] for p in parameters(spec)}
        variables |= slots
        self._reads, self._assignments = {}, {}
        for name, variable in variables.items():
            value = tf1.placeholder(variable.dtype, variable.shape)
            self._reads[name] = variable.read_value()
            self._assignments[name] = value, variable.assign(value).op

    def _towers(self, feeds):
        """Build the network on each replica's rows.

        Args:
          feeds: name -> placeholder of the global batch.
        """
        spec = self.spec

        def network(scale, **parts):
            masks = [parts.pop(f"mask_{k}", None) for k in range(spec.model.num_layers + 1)]
            return NETWORKS[spec.network](spec.model, Inputs(**parts, masks=masks, scale=scale))

        split = {name: tensor for name, tensor in feeds.items() if name != "scale"}
        return make_parallel(
            network, self._devices, self._sizes, shared={"scale": feeds["scale"]}, **split
        )

    def load(self, snapshot):
        """Set weights and optimiser state on every replica.

        Args:
          snapshot: name -> array in canonical layout.
        """
        load_snapshot(self._session, self._assignments, snapshot)

    def snapshot(self):
        """Return weights and optimiser state, name -> array in canonical layout."""
        return read_snapshot(self._session, self._reads)

    def replica_distances(self):
        """Return each replica's greatest absolute distance from replica 0, name -> [replicas].

        Exactly zero in every parameter and slot, or the replicas have drifted apart.
        """
        # differs: the towers share one copy; building the graph has counted its variables
        return {}

    def step(self, inputs, state, learning_rate, record=False):
        """Train on one global batch.

        Args:
          inputs: StepInputs.
          state: (h, c) before the batch, each [batch, layers, hidden].
          learning_rate: of this step.
          record: also return all that a trace holds.

        Returns:
          StepResult.
        """
        outputs = self._outputs
        wanted = {
            "losses": [each.loss for each in outputs],
            "h": [each.h for each in outputs],
            "c": [each.c for each in outputs],
            "norm": self._norm,
            "update": self._update,
        }
        if record:
            wanted["activations"] = [each.activations for each in outputs]
            wanted["gradient"] = self._gradients
            wanted["clipped_gradient"] = self._clipped
        feeds = self._fill(self._feeds, inputs, state) | {self._learning_rate: learning_rate}
        values = self._session.run(wanted, feeds)
        tensors = self._record(inputs, values) if record else {}
        return _result(values, tensors)

    def evaluate(self, inputs, state):
        """Compute the loss of one global batch, without dropout and without training on it.

        Args:
          inputs: StepInputs without masks.
          state: (h, c) before the batch, each [batch, layers, hidden].

        Returns:
          StepResult with a gradient norm of 0.
        """
        outputs = self._evaluation
        wanted = {
            "losses": [each.loss for each in outputs],
            "h": [each.h for each in outputs],
            "c": [each.c for each in outputs],
        }
        feeds = self._fill(self._evaluation_feeds, inputs, state)
        return _result(self._session.run(wanted, feeds), {})

    def _record(self, inputs, values):
        activations = {
            name: [each[name] for each in values["activations"]]
            for name in self._outputs[0].activations
        }
        tensors = join_activations(self.spec, activations, inputs.tokens.shape[1])
        for kind in ("gradient", "clipped_gradient"):
            for variable, value in zip(self._parameters, values[kind], strict=True):
                name = f"{kind}/{variable.op.name}"
                tensors[name] = from_framework(name, value)
        return tensors | self.snapshot()

    def _fill(self, placeholders, inputs, state):
        # differs: the global batch is fed whole, and split in the graph
        (feed,) = split_feeds(self.spec, inputs, state, 1)
        filled = {placeholders[name]: array for name, array in feed.items()}
        return filled | {self._sizes: split_rows(len(inputs.tokens), self.replicas)}


def _feeds(spec, masks):
    model, dtype = spec.model, spec.training.dtype
    widths = [model.embedding_size] + [model.hidden_size] * model.num_layers
    feeds = {
        "tokens": tf1.placeholder(tf.int64, [None, None]),
        "targets": tf1.placeholder(tf.int64, [None, None]),
        "lengths": tf1.placeholder(tf.int64, [None]),
        "h": tf1.placeholder(dtype, [None, model.num_layers, model.hidden_size]),
        "c": tf1.placeholder(dtype, [None, model.num_layers, model.hidden_size]),
        "scale": tf1.placeholder(dtype, [1]),
    }
    if masks and model.keep < 1:
        for place, width in enumerate(widths):
            feeds[f"mask_{place}"] = tf1.placeholder(dtype, [None, None, width])
    return feeds


def _result(values, tensors):
    losses, h, c = (np.concatenate(values[name]) for name in ("losses", "h", "c"))
    return StepResult(losses, h, c, float(values.get("norm", 0.0)), tensors)
