"""Layers on devices: each replica's layers are spread over stages, each with its own device.

The rows of a replica are divided into micro-batches. As soon as a stage has passed the
activations of one micro-batch on, it starts with the next, and so all stages work at the same
time; on the way back likewise. One update uses the sum of the gradients of all micro-batches.
Several replicas, each with its own devices, make the hybrid of both kinds of parallelism.

Source: Huang et al. 2019, arXiv:1811.06965, section 2.3, which calls it GPipe.
"""

from contextlib import contextmanager

import tensorflow as tf

from parity.base.errors import UsageError
from parity.twins.spec.stages import placing_layers, stages_of
from tf_impl.strategies.synchronous_base import Synchronous
from tf_impl.strategies.towers import summed_gradients

tf1 = tf.compat.v1


class Layers(Synchronous):
    """Computes each layer on the device of its stage, and all stages at the same time.

    Attributes:
      stages: the number of stages, which are devices, of each replica.
      micro_batches: the number of parts that each replica's rows are divided into.
    """

    def __init__(self, spec, build, entry):
        self.stages = build.settings.stages
        self.micro_batches = build.settings.micro_batches
        self._stage_of = {
            layer: stage
            for stage, layers in enumerate(stages_of(spec, self.stages))
            for layer in layers
        }
        super().__init__(spec, build, entry)

    # differs: each micro-batch is a tower, whose operations the graph places on the devices
    def _replicate(self, function, devices, sizes, shared, **inputs):
        towers = self.replicas * self.micro_batches
        parts = {
            name: tf.split(tensor, sizes, axis=0, num=towers) for name, tensor in inputs.items()
        }
        outputs = []
        for tower in range(towers):
            replica, micro_batch = divmod(tower, self.micro_batches)
            stages = devices[replica * self.stages :][: self.stages]
            with (
                self._placed(stages),
                tf1.name_scope(f"replica_{replica}/micro_batch_{micro_batch}"),
                tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE),
            ):
                own = {name: split[tower] for name, split in parts.items()}
                outputs.append(function(**own, **shared))
        return outputs

    @contextmanager
    def _placed(self, devices):
        """Place each operation on the device of the layer that was begun last.

        Args:
          devices: one device name per stage.
        """
        stage, reached = 0, {0}

        def begin(layer):
            nonlocal stage
            stage = self._stage_of[layer]
            reached.add(stage)

        # a function, because a layer begins in the midst of a network's lines, without a block
        with placing_layers(begin), tf1.device(lambda operation: devices[stage]):
            yield
        if len(reached) < self.stages:
            raise UsageError(
                f"--stages is {self.stages}, but the network {self.spec.network!r} does not "
                "declare where its layers begin, by begin_layer; allowed: 1"
            )

    def _combine(self, losses, parameters, shares):
        return summed_gradients(losses, parameters)
