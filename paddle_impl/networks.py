"""The networks: each reads the same in both dialects."""

from collections import namedtuple

import paddle

from paddle_impl.attention import attend, attention_keys, attentional, feeding_decoder
from paddle_impl.layers import (
    bidirectional,
    dropout,
    embedding,
    linear,
    log_softmax,
    lstm,
    real_rows,
    recurrent,
    token_cross_entropy,
    zero_state,
)
from paddle_impl.taps import Taps

# One replica's share of a batch: the batch's arrays and the state by name, rows first; masks by
# name, [batch, time, width], or none at all; scale [1]; Taps, through which layers hand on.
Inputs = namedtuple("Inputs", ["batch", "state", "masks", "scale", "tap"])

# What a network computes: the replica's loss [1], by name the state [batch, layers, hidden]
# after the batch, and by name its activations, time first.
Outputs = namedtuple("Outputs", ["loss", "state", "activations"])


def language_model(model, inputs):
    """Build the recurrent language model on one replica.

    The loss is the summed cross entropy of the replica's real tokens, times `scale`: one over
    the real tokens of the global batch. The sum over replicas is then the global loss.

    Args:
      model: LanguageModelSpec.
      inputs: Inputs with a batch of tokens and targets int64 [batch, time] and lengths int64
        [batch], a state of h and c [batch, layers, hidden], masks embedded, lstm_0, ...

    Returns:
      Outputs.

    Source: Zaremba et al. 2014, arXiv:1409.2329.
    """
    batch, masks, tap, states = inputs.batch, inputs.masks, inputs.tap, []
    tokens = paddle.transpose(batch["tokens"], [1, 0])
    targets = paddle.transpose(batch["targets"], [1, 0])
    hidden = embedding(
        tokens, "embed", model.vocabulary_size, model.embedding_size, inputs.scale.dtype
    )
    hidden = dropout(tap("embedded", hidden), masks.get("embedded"))
    for k, (h, c) in enumerate(split_state(model, inputs.state)):
        name = f"lstm_{k}"
        hidden, h, c = lstm(hidden, batch["lengths"], h, c, name, model.hidden_size)
        hidden = tap(f"{name}/hidden", hidden)
        hidden = dropout(hidden, masks.get(name))
        states.append((h, c))
    logits = linear(real_rows(hidden, batch["lengths"]), "softmax", model.vocabulary_size)
    losses = token_cross_entropy(logits, real_rows(targets, batch["lengths"]))
    tap("logits", logits)
    tap("token_loss", losses)
    loss = paddle.sum(losses) * inputs.scale
    return Outputs(loss, join_state(states), tap.activations)


def seq2seq(model, inputs):
    """Build the encoder and the decoder that attends to it on one replica.

    The loss is the summed cross entropy of the replica's real target tokens, times `scale`: one
    over those of the global batch.

    Args:
      model: Seq2seqSpec.
      inputs: Inputs with a batch of source int64 [batch, source_time], source_lengths int64
        [batch], tokens and targets int64 [batch, time] and lengths int64 [batch]; masks
        source_embedded, encoder_0, ..., target_embedded, decoder_0, ..., attentional.

    Returns:
      Outputs; the state is the encoder's final one.

    Sources: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473;
    Luong et al. 2015, arXiv:1508.04025; Wu et al. 2016, arXiv:1609.08144, section 3.2.
    """
    batch, masks, tap = inputs.batch, inputs.masks, inputs.tap
    memory, states = encode(model, batch, masks, inputs.scale.dtype, tap)
    final = join_state(states)
    handed = {name: tap(f"encoder/{name}", final[name]) for name in sorted(final)}
    if tap.fed:
        states = split_state(model, handed)
    keys = attention_keys(memory, model.attention)
    fed = paddle.zeros_like(states[-1][0])
    outputs, _, _ = decode(model, batch, states, fed, keys, memory, masks, tap)
    targets = paddle.transpose(batch["targets"], [1, 0])
    outputs = real_rows(dropout(outputs, masks.get("attentional")), batch["lengths"])
    logits = linear(outputs, "softmax", model.target_vocabulary_size)
    losses = token_cross_entropy(logits, real_rows(targets, batch["lengths"]))
    tap("logits", logits)
    tap("token_loss", losses)
    loss = paddle.sum(losses) * inputs.scale
    return Outputs(loss, final, tap.activations)


def encode(model, batch, masks, dtype, tap):
    """Read the source.

    Args:
      model: Seq2seqSpec.
      batch: with source int64 [batch, source_time] and source_lengths int64 [batch].
      masks: by name, source_embedded and encoder_0, ...; one that is missing is no dropout.
      dtype: of the parameters.
      tap: Taps.

    Returns:
      memory, the top layer's outputs [batch, source_time, hidden]; the final state, a tuple per
      layer.
    """
    states, lengths = [], batch["source_lengths"]
    tokens = paddle.transpose(batch["source"], [1, 0])
    hidden = embedding(
        tokens, "encoder/embed", model.source_vocabulary_size, model.embedding_size, dtype
    )
    hidden = tap("encoder/embedded", hidden)
    for k in range(model.num_layers):
        name = f"encoder/{model.cell}_{k}"
        hidden = dropout(hidden, masks.get(f"encoder_{k - 1}" if k else "source_embedded"))
        if k == 0 and model.bidirectional:
            hidden, state = bidirectional(hidden, lengths, name, model.cell, model.hidden_size)
        else:
            state = zero_state(hidden, model.cell, model.hidden_size)
            hidden, state = recurrent(
                hidden, lengths, state, name, model.cell, model.hidden_size
            )
        hidden = tap(f"{name}/hidden", hidden)
        states.append(state)
    return paddle.transpose(hidden, [1, 0, 2]), states


def decode(model, batch, states, fed, keys, memory, masks, tap):
    """Write the target, attending to the source.

    Args:
      model: Seq2seqSpec.
      batch: with tokens int64 [batch, time], lengths and source_lengths int64 [batch].
      states: a tuple per layer before the first step, each part [batch, hidden].
      fed: [batch, hidden], the attentional output before the first step.
      keys: of `attention_keys`, [batch, source_time, hidden].
      memory: of `encode`, [batch, source_time, hidden].
      masks: by name, target_embedded and decoder_0, ...; one that is missing is no dropout.
      tap: Taps.

    Returns:
      attentional outputs [time, batch, hidden]; the state and the attentional output after the
      last step.
    """
    layers = range(model.num_layers)
    names = [f"decoder/{model.cell}_{k}" for k in layers]
    tokens = paddle.transpose(batch["tokens"], [1, 0])
    embedded = embedding(
        tokens, "decoder/embed", model.target_vocabulary_size, model.embedding_size, fed.dtype
    )
    inputs = dropout(tap("decoder/embedded", embedded), masks.get("target_embedded"))
    between = [masks.get(f"decoder_{k}") for k in layers[:-1]]
    if model.input_feeding:
        hidden, context, weights, outputs, states, fed = feeding_decoder(
            inputs, states, fed, keys, memory, batch["source_lengths"], between, model
        )
        # one loop: nothing within it is handed on here
        for k in layers:
            tap(f"{names[k]}/hidden", hidden[k])
        tap("attention/weights", weights)
        tap("attention/context", context)
    else:
        hidden, last = [], []
        for k, mask in zip(layers, [*between, None], strict=True):
            output, state = recurrent(
                inputs, batch["lengths"], states[k], names[k], model.cell, model.hidden_size
            )
            output = tap(f"{names[k]}/hidden", output)
            inputs = dropout(output, mask)
            hidden.append(output)
            last.append(state)
        states = last
        context, weights = attend(
            hidden[-1], keys, memory, batch["source_lengths"], model.attention
        )
        tap("attention/weights", weights)
        context = tap("attention/context", context)
        outputs = attentional(context, hidden[-1])
    return tap("attention/output", outputs), states, fed


def decoding_start(model, source, source_lengths, dtype):
    """Build what decoding starts from: the source as the decoder sees it.

    Args:
      model: Seq2seqSpec.
      source: int64 [batch, source_time].
      source_lengths: int64 [batch].
      dtype: of the parameters.

    Returns:
      The decoder's state by name, rows first: memory and keys [batch, source_time, hidden],
      source_lengths, weights of the last step's attention [batch, source_time], fed
      [batch, hidden], h and for an LSTM c [batch, layers, hidden].
    """
    batch = {"source": source, "source_lengths": source_lengths}
    memory, states = encode(model, batch, {}, dtype, Taps())
    return {
        "memory": memory,
        "keys": attention_keys(memory, model.attention),
        "source_lengths": source_lengths,
        "weights": paddle.zeros_like(memory[:, :, 0]),
        "fed": paddle.zeros_like(states[-1][0]),
        **join_state(states),
    }


def decoding_step(model, tokens, state):
    """Build one step of decoding.

    Args:
      model: Seq2seqSpec.
      tokens: int64 [batch], what each row said last; `<go>` at first.
      state: of `decoding_start` or of the step before.

    Returns:
      log probabilities [batch, vocabulary], and the state after the step.
    """
    batch = {
        "tokens": tokens[:, None],
        "lengths": paddle.ones_like(tokens),
        "source_lengths": state["source_lengths"],
    }
    tap = Taps()
    outputs, states, fed = decode(
        model,
        batch,
        split_state(model, state),
        state["fed"],
        state["keys"],
        state["memory"],
        masks={},
        tap=tap,
    )
    logits = linear(outputs[0], "softmax", model.target_vocabulary_size)
    weights = tap.activations["attention/weights"][0]
    return log_softmax(logits), {
        **state,
        "weights": weights,
        "fed": fed,
        **join_state(states),
    }


def split_state(model, state):
    """Return a state as the layers have it, a tuple per layer, each part [batch, hidden].

    Args:
      model: ModelSpec.
      state: h and for an LSTM c, [batch, layers, hidden].
    """
    parts = [state[name] for name in ("h", "c") if name in state]
    return [tuple(part[:, k] for part in parts) for k in range(model.num_layers)]


def join_state(states):
    """Return a state by name, h and for an LSTM c, each [batch, layers, hidden].

    Args:
      states: a tuple per layer, each part [batch, hidden].
    """
    parts = zip(*states, strict=True)
    return {
        name: paddle.stack(part, axis=1) for name, part in zip(("h", "c"), parts, strict=False)
    }


NETWORKS = {"language-model": language_model, "seq2seq": seq2seq}
