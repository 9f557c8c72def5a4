"""Fluid's ParallelExecutor, on the C++ engine that Paddle 2.6 still contains.

A single process runs one static program on N replicas. Each replica has a scope with a copy of
the parameters and computes its own rows; the gradients are summed over all replicas before the
update. On CPUs the fast kernels have one copy, which all replicas read and one update writes.
"""

from paddle_impl.executor import ParallelExecutor, SharedWeightsExecutor
from paddle_impl.strategies.synchronous_base import Synchronous


class ParallelExecutorStrategy(Synchronous):
    """Runs one program on every replica; the engine sums the gradients before the update."""

    @property
    def _shares_weights(self):
        # With two replicas of `nmt-bahdanau`, 10,000 words, 2,097 tokens/s, then 2,279; with
        # eight of a language model with hidden 200 a step took 306 ms, then 268.
        return self.build.kernels == "fast" and self.build.device == "cpu"

    def _executor(self, program, loss_name, share_variables_from=None):
        if loss_name and self._shares_weights and len(self._places) > 1:
            gradients = [gradient.name for gradient in self._gradients]
            return SharedWeightsExecutor(
                program, loss_name, gradients, self._places, self._scope
            )
        return ParallelExecutor(
            program, loss_name, self._places, self._scope, share_variables_from
        )
