"""Layers on devices: each replica's layers are spread over stages, each with its own device.

The rows of a replica are divided into micro-batches. As soon as a stage has passed the
activations of one micro-batch on, it starts with the next, and so all stages work at the same
time; on the way back likewise. One update uses the sum of the gradients of all micro-batches.
Several replicas, each with its own devices, make the hybrid of both kinds of parallelism.

Source: Huang et al. 2019, arXiv:1811.06965, section 2.3, which calls it GPipe.
"""

import paddle

from paddle_impl.strategies.pipeline import Pipeline
from paddle_impl.strategies.synchronous_base import Synchronous
from parity.base.errors import UsageError
from parity.twins.spec.stages import placing_layers, stages_of


class Layers(Synchronous):
    """Computes each layer on the device of its stage, and all stages at the same time.

    Attributes:
      stages: the number of stages, which are devices, of each replica.
      micro_batches: the number of parts that each replica's rows are divided into.
    """

    # differs: on a CPU this framework places nothing, so that its program is cut into one for
    # each stage, by stage_programs.py; pipeline.py runs them
    _shares_weights = True

    def __init__(self, spec, build, entry):
        if build.device != "cpu":
            # the weights of all stages are in the memory of one device
            raise UsageError(
                f"--device is {build.device!r}; allowed for Paddle's strategy layers: cpu"
            )
        self.stages = build.settings.stages
        self.micro_batches = build.settings.micro_batches
        self._stage_of = {
            layer: stage
            for stage, layers in enumerate(stages_of(spec, self.stages))
            for layer in layers
        }
        self._computed_in = {}  # program -> name of a variable -> its stage
        super().__init__(spec, build, entry)

    def _network(self, builder, inputs):
        program = paddle.static.default_main_program()
        block, stage, reached, done = program.global_block(), 0, {0}, 0
        computed_in = self._computed_in[program] = {}

        def close():
            nonlocal done
            for operation in block.ops[done:]:
                computed_in.update(dict.fromkeys(operation.output_arg_names, stage))
            done = len(block.ops)

        def begin(layer):
            nonlocal stage
            close()
            stage = self._stage_of[layer]
            reached.add(stage)

        with placing_layers(begin):
            network = super()._network(builder, inputs)
        close()
        if len(reached) < self.stages:
            raise UsageError(
                f"--stages is {self.stages}, but the network {self.spec.network!r} does not "
                "declare where its layers begin, by begin_layer; allowed: 1"
            )
        return network

    def _executor(self, program, loss_name, share_variables_from=None):
        return Pipeline(
            program,
            self._computed_in[program],
            self.stages,
            self.replicas,
            self.micro_batches,
            self._places,
            self._scope,
        )
