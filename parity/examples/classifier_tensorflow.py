"""The port: the classifier, trained in TensorFlow with Keras layers and recorded.

python -m parity.examples.classifier_tensorflow out/example/tensorflow --dtype float64

Two mistakes that real ports contain can be made on purpose: --epsilon 0.001 is Keras's own
default, and --transposed loads a square kernel transposed, which its shape cannot show.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from parity import Recorder
from parity.examples import classifier

# Layouts and most names are the shared ones here.
NAMES = {"norm/gamma": "norm/scale", "norm/beta": "norm/offset"}


class Classifier:
    """A convolution, its mean over the image, a normalised hidden layer, and the logits."""

    def __init__(self, epsilon):
        channels, layers = classifier.CHANNELS, tf.keras.layers
        self.conv = layers.Conv2D(channels, 3, activation="relu", name="conv")
        self.norm = layers.LayerNormalization(epsilon=epsilon, name="norm")
        self.hidden = layers.Dense(channels, activation="tanh", name="hidden")
        self.output = layers.Dense(classifier.CLASSES, name="output")
        self.conv.build((None, 8, 8, 1))
        for layer in (self.norm, self.hidden, self.output):
            layer.build((None, channels))
        layers = (self.conv, self.norm, self.hidden, self.output)
        self.variables = [variable for layer in layers for variable in layer.variables]

    def __call__(self, images):
        """Return every layer's output by name, in the order of computation."""
        conv = self.conv(images)
        pooled = tf.reduce_mean(conv, axis=[1, 2])
        norm = self.norm(pooled)
        hidden = self.hidden(norm)
        logits = self.output(hidden)
        return {
            "conv": conv,
            "pooled": pooled,
            "norm": norm,
            "hidden": hidden,
            "logits": logits,
        }


def main():
    """Train and record."""
    parser = classifier.arguments("Train the example in TensorFlow.")
    parser.add_argument("--epsilon", type=float, default=classifier.EPSILON)
    parser.add_argument("--transposed", action="store_true")
    options = parser.parse_args()
    tf.keras.config.set_floatx(options.dtype)
    model = Classifier(options.epsilon)
    given = classifier.weights(options.dtype)
    if options.transposed:
        given["hidden/kernel"] = given["hidden/kernel"].T
    for variable, array in zip(model.variables, given.values(), strict=True):
        variable.assign(array)
    optimizer = tf.keras.optimizers.SGD(classifier.LEARNING_RATE, classifier.MOMENTUM)
    optimizer.build(model.variables)
    with Recorder(
        options.folder,
        framework="tensorflow",
        dtype=options.dtype,
        run=classifier.RUN,
        names=NAMES,
        tolerances=classifier.TOLERANCES[options.dtype],
        versions={"tensorflow": tf.__version__, "keras": tf.keras.__version__},
    ) as recorder:
        for step in range(options.steps):
            images, labels = classifier.batch(step, options.dtype)
            with tf.GradientTape() as tape:
                outputs = model(images)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, outputs["logits"]
                )
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, [each.value for each in model.variables])
            optimizer.apply(gradients, model.variables)
            names = [variable.path for variable in model.variables]
            # Keras keeps -learning_rate * velocity
            kept = [-each.numpy() / classifier.LEARNING_RATE for each in optimizer.momentums]
            recorder.step(
                step,
                {
                    "batch/images": images,
                    "batch/labels": labels,
                    **{f"forward/{name}": each.numpy() for name, each in outputs.items()},
                    "loss/mean": loss.numpy(),
                    **{
                        f"gradient/{name}": each.numpy()
                        for name, each in zip(names, gradients, strict=True)
                    },
                    **{
                        f"optimizer/{name}/velocity": each
                        for name, each in zip(names, kept, strict=True)
                    },
                    **{f"weight/{each.path}": each.numpy() for each in model.variables},
                },
            )


if __name__ == "__main__":
    main()
