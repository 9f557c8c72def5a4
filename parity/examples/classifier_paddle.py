"""The original: the classifier, trained in Paddle and recorded.

python -m parity.examples.classifier_paddle out/example/paddle --dtype float64
"""

import numpy.random  # noqa: F401  before Paddle, which loads its own zlib
import paddle
import paddle.nn.functional as F  # noqa: N812  as everybody calls it

from parity import Recorder, Rename
from parity.examples import classifier

# Images are [batch, channels, height, width] here, kernels [out, in, height, width]. A linear
# layer's kernel is [in, out] on both sides; PyTorch's is [out, in], and would need
# Rename(..., transpose=True).
NAMES = {
    "images": Rename("images", axes=(0, 2, 3, 1)),
    "conv": Rename("conv", axes=(0, 2, 3, 1)),
    "conv.weight": Rename("conv/kernel", axes=(2, 3, 1, 0)),
    "conv.bias": "conv/bias",
    "norm.weight": "norm/scale",
    "norm.bias": "norm/offset",
    "hidden.weight": "hidden/kernel",
    "hidden.bias": "hidden/bias",
    "output.weight": "output/kernel",
    "output.bias": "output/bias",
}


class Classifier(paddle.nn.Layer):
    """A convolution, its mean over the image, a normalised hidden layer, and the logits."""

    def __init__(self):
        super().__init__()
        channels = classifier.CHANNELS
        self.conv = paddle.nn.Conv2D(1, channels, 3)
        self.norm = paddle.nn.LayerNorm(channels, epsilon=classifier.EPSILON)
        self.hidden = paddle.nn.Linear(channels, channels)
        self.output = paddle.nn.Linear(channels, classifier.CLASSES)

    def forward(self, images):
        """Return every layer's output by name, in the order of computation."""
        conv = F.relu(self.conv(images))
        pooled = conv.mean(axis=[2, 3])
        norm = self.norm(pooled)
        hidden = paddle.tanh(self.hidden(norm))
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
    options = classifier.arguments("Train the example in Paddle.").parse_args()
    paddle.set_default_dtype(options.dtype)
    model = Classifier()
    parameters = dict(model.named_parameters())
    given = classifier.weights(options.dtype)
    given["conv/kernel"] = given["conv/kernel"].transpose(3, 2, 0, 1)
    for parameter, array in zip(parameters.values(), given.values(), strict=True):
        parameter.set_value(array)
    optimizer = paddle.optimizer.Momentum(
        classifier.LEARNING_RATE, classifier.MOMENTUM, parameters=model.parameters()
    )
    with Recorder(
        options.folder,
        framework="paddle",
        dtype=options.dtype,
        run=classifier.RUN,
        names=NAMES,
        tolerances=classifier.TOLERANCES[options.dtype],
        versions={"paddle": paddle.__version__},
    ) as recorder:
        for step in range(options.steps):
            images, labels = classifier.batch(step, options.dtype)
            images = images.transpose(0, 3, 1, 2)
            outputs = model(paddle.to_tensor(images))
            loss = F.cross_entropy(outputs["logits"], paddle.to_tensor(labels))
            loss.backward()
            gradients = {name: each.grad.numpy() for name, each in parameters.items()}
            optimizer.step()
            optimizer.clear_grad()
            kept = optimizer.state_dict()
            recorder.step(
                step,
                {
                    "batch/images": images,
                    "batch/labels": labels,
                    **{f"forward/{name}": each.numpy() for name, each in outputs.items()},
                    "loss/mean": loss.numpy(),
                    **{f"gradient/{name}": each for name, each in gradients.items()},
                    **{
                        f"optimizer/{name}/velocity": kept[f"{each.name}_velocity_0"].numpy()
                        for name, each in parameters.items()
                    },
                    **{f"weight/{name}": each.numpy() for name, each in parameters.items()},
                },
            )


if __name__ == "__main__":
    main()
