"""Fluid's ParallelExecutor, on the C++ engine that Paddle 2.6 still contains.

A single process runs one static program on N replicas. Each replica has a scope with a copy of
the parameters and computes its own rows; the gradients are summed over all replicas before the
update.
"""

from paddle_impl.executor import ParallelExecutor
from paddle_impl.strategies.synchronous_base import Synchronous


class ParallelExecutorStrategy(Synchronous):
    """Runs one program on every replica; the engine sums the gradients before the update."""

    def _executor(self, program, loss_name, share_variables_from=None):
        return ParallelExecutor(
            program, loss_name, self._places, self._scope, share_variables_from
        )
