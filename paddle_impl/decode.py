"""Decoding with a trained network: the graphs on which parity/twins/decoding searches."""

import paddle

from paddle_impl.devices import replica_devices
from paddle_impl.executor import ParallelExecutor
from paddle_impl.kernels import use_kernels
from paddle_impl.networks import decoding_start, decoding_step
from paddle_impl.weights import load_snapshot
from parity.twins.spec.parameters import parameters


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
        # differs: the environment set the number of threads before the framework was loaded
        self.spec = spec
        (self._place,) = replica_devices(build.device, 1)
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(self._place)
        with (
            use_kernels(build.kernels),
            paddle.static.scope_guard(self._scope),
            paddle.utils.unique_name.guard(),
        ):
            self._build()

    def _build(self):
        model, dtype = self.spec.model, self.spec.training.dtype
        self._programs = paddle.static.Program(), paddle.static.Program()
        data = paddle.static.data
        startup = paddle.static.Program()
        with paddle.static.program_guard(self._programs[0], startup):
            source = data("source", [-1, -1], "int64")
            source_lengths = data("source_lengths", [-1], "int64")
            self._start = decoding_start(model, source, source_lengths, dtype)
        with paddle.static.program_guard(self._programs[1], startup):
            tokens = data("tokens", [-1], "int64")
            state = {
                name: data(name, variable.shape, variable.dtype)
                for name, variable in self._start.items()
            }
            self._log_probs, self._next_state = decoding_step(model, tokens, state)
        self._executor.run(startup)
        # Paddle's own executor keeps the length of a loop's arrays: it would fail to read a
        # shorter sentence after a longer one.
        self._reader = ParallelExecutor(self._programs[0], None, [self._place], self._scope)
        self._variables = {f"weight/{each.name}": [each.name] for each in parameters(self.spec)}

    def load(self, snapshot):
        """Set the weights.

        Args:
          snapshot: name -> array in canonical layout; its optimiser state is ignored.
        """
        weights = {name: snapshot[name] for name in self._variables}
        load_snapshot([self._scope], [self._place], self._variables, weights)

    def start(self, source, source_lengths):
        feeds = {"source": source, "source_lengths": source_lengths}
        names = [variable.name for variable in self._start.values()]
        values = self._reader.run(names, [feeds])
        return {name: value for name, (value,) in zip(self._start, values, strict=True)}

    def step(self, tokens, state):
        feeds = {"tokens": tokens, **state}
        fetch = [self._log_probs, *self._next_state.values()]
        with paddle.static.scope_guard(self._scope):
            log_probs, *values = self._executor.run(self._programs[1], feeds, fetch)
        return log_probs, dict(zip(self._next_state, values, strict=True))
