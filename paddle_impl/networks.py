"""The networks: each reads the same in both dialects."""

from collections import namedtuple

import paddle

from paddle_impl.layers import dropout, embedding, linear, lstm, token_cross_entropy

# One replica's share of a batch. Rows come first in every field but `scale`.
Inputs = namedtuple("Inputs", ["tokens", "targets", "lengths", "h", "c", "masks", "scale"])

# What a network computes: the replica's loss [1], the state [batch, layers, hidden] after the
# batch, and its activations by name, time first.
Outputs = namedtuple("Outputs", ["loss", "h", "c", "activations"])


def language_model(model, inputs):
    """Build the recurrent language model on one replica.

    The loss is the summed cross entropy of the replica's real tokens, times `scale`: one over
    the real tokens of the global batch. The sum over replicas is then the global loss.

    Args:
      model: ModelSpec.
      inputs: tokens and targets int64 [batch, time], lengths int64 [batch], h and c
        [batch, layers, hidden], masks: num_layers + 1 of [batch, time, width] or None,
        scale [1].

    Returns:
      Outputs.

    Source: Zaremba et al. 2014, arXiv:1409.2329.
    """
    activations, states = {}, []
    tokens = paddle.transpose(inputs.tokens, [1, 0])
    targets = paddle.transpose(inputs.targets, [1, 0])
    hidden = embedding(
        tokens, "embed", model.vocabulary_size, model.embedding_size, inputs.h.dtype
    )
    activations["embedded"] = hidden
    for k in range(model.num_layers):
        name = f"lstm_{k}"
        hidden = dropout(hidden, inputs.masks[k])
        hidden, h, c = lstm(
            hidden, inputs.lengths, inputs.h[:, k], inputs.c[:, k], name, model.hidden_size
        )
        activations[f"{name}/hidden"] = hidden
        states.append((h, c))
    hidden = dropout(hidden, inputs.masks[model.num_layers])
    # On rows of tokens: a product of rank 3 is slower, and its gradient more so.
    rows = paddle.reshape(hidden, [-1, model.hidden_size])
    logits = linear(rows, "softmax", model.vocabulary_size)
    losses = token_cross_entropy(logits, targets, inputs.lengths)
    activations["logits"] = logits
    activations["token_loss"] = losses
    loss = paddle.sum(losses) * inputs.scale
    h, c = (paddle.stack(list(part), axis=1) for part in zip(*states, strict=True))
    return Outputs(loss, h, c, activations)


NETWORKS = {"language-model": language_model}
