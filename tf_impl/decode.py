"""Decoding with a trained network: the graphs on which parity/twins/decoding searches."""

import tensorflow as tf

from parity.twins.spec.parameters import parameters
from tf_impl.devices import replica_devices
from tf_impl.kernels import use_kernels
from tf_impl.networks import decoding_start, decoding_step
from tf_impl.weights import load_snapshot

tf1 = tf.compat.v1


class Decoder:
    """Reads source sentences, and computes the log probabilities of each row's next token.

    It is a `DecodingModel` of parity/twins/decoding.

    Attributes:
      spec: the Spec of a seq2seq network.
    """

    def __init__(self, spec, build):
        """Build the graphs, with weights of zero.

        Args:
          spec: the Spec of a seq2seq network.
          build: a Build, of which only device, threads and kernels are used.

        Raises:
          UsageError: if this machine lacks the device.
        """
        self.spec = spec
        (place,) = replica_devices(build.device, 1)
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device(place):
            with use_kernels(build.kernels):
                self._build()
            config = tf1.ConfigProto(
                intra_op_parallelism_threads=build.threads,
                inter_op_parallelism_threads=1,
                allow_soft_placement=True,
            )
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            self._session = tf1.Session(config=config)
            self._session.run(tf1.global_variables_initializer())
        self._graph.finalize()

    def _build(self):
        model, dtype = self.spec.model, self.spec.training.dtype
        self._source = {
            "source": tf1.placeholder(tf.int64, [None, None]),
            "source_lengths": tf1.placeholder(tf.int64, [None]),
        }
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            self._start = decoding_start(model, **self._source, dtype=dtype)
            self._tokens = tf1.placeholder(tf.int64, [None])
            self._state = {
                name: tf1.placeholder(tensor.dtype, tensor.shape)
                for name, tensor in self._start.items()
            }
            self._step = decoding_step(model, self._tokens, self._state)
        self._assignments = {}
        by_name = {variable.op.name: variable for variable in tf1.trainable_variables()}
        for each in parameters(self.spec):
            variable = by_name[each.name]
            value = tf1.placeholder(variable.dtype, variable.shape)
            self._assignments[f"weight/{each.name}"] = value, variable.assign(value).op

    def load(self, snapshot):
        """Set the weights.

        Args:
          snapshot: name -> array in canonical layout; its optimiser state is ignored.
        """
        weights = {name: snapshot[name] for name in self._assignments}
        load_snapshot(self._session, self._assignments, weights)

    def start(self, source, source_lengths):
        feeds = {self._source["source"]: source, self._source["source_lengths"]: source_lengths}
        return self._session.run(self._start, feeds)

    def step(self, tokens, state):
        feeds = {self._state[name]: array for name, array in state.items()}
        return self._session.run(self._step, feeds | {self._tokens: tokens})
