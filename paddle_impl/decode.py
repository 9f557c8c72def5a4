"""Decoding with a trained network: the graphs that parity/decoding searches with."""

import paddle

from paddle_impl.devices import replica_devices
from paddle_impl.networks import decoding_start, decoding_step
from paddle_impl.weights import load_snapshot
from parity.spec.parameters import parameters


class Decoder:
    """Reads sources and gives the log probabilities of what may come next, row by row.

    Attributes:
      spec: Spec of a seq2seq network.
    """

    def __init__(self, spec, build):
        """Build the graphs, with weights of zero.

        Args:
          spec: Spec.
          build: Build; of it, device, threads and kernels count here.

        Raises:
          UsageError: if a device is wanted that is not there.
        """
        # differs: the environment has set the threads before the framework was loaded
        self.spec = spec
        (self._place,) = replica_devices(build.device, 1)
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(self._place)
        with paddle.static.scope_guard(self._scope), paddle.utils.unique_name.guard():
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
            before = {
                name: data(name, variable.shape, variable.dtype)
                for name, variable in self._start.items()
            }
            self._log_probs, self._after = decoding_step(model, tokens, before)
        self._executor.run(startup)
        self._variables = {f"weight/{each.name}": [each.name] for each in parameters(self.spec)}

    def load(self, snapshot):
        """Set the weights.

        Args:
          snapshot: name -> array in canonical layout; optimiser state in it is not read.
        """
        weights = {name: snapshot[name] for name in self._variables}
        load_snapshot([self._scope], [self._place], self._variables, weights)

    def start(self, source, source_lengths):
        """Read sources.

        Args:
          source: int64 [batch, source_time].
          source_lengths: int64 [batch], each >= 1.

        Returns:
          The decoder's state, name -> array with rows first.
        """
        feeds = {"source": source, "source_lengths": source_lengths}
        values = self._run(0, feeds, self._start.values())
        return dict(zip(self._start, values, strict=True))

    def step(self, tokens, state):
        """Go on by one token.

        Args:
          tokens: int64 [batch], what each row said last; `<go>` at first.
          state: of `start` or of the step before, its rows picked at will.

        Returns:
          log probabilities [batch, vocabulary], and the state after the step.
        """
        feeds = {"tokens": tokens, **state}
        log_probs, *values = self._run(1, feeds, [self._log_probs, *self._after.values()])
        return log_probs, dict(zip(self._after, values, strict=True))

    def _run(self, program, feeds, fetch):
        with paddle.static.scope_guard(self._scope):
            return self._executor.run(self._programs[program], feeds, list(fetch))
