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
        # The update of `nmt-bahdanau` by two replicas took 51 ms of 396, then 29; that of a
        # language model with hidden 200 by eight 30 of 325, then 6.
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
