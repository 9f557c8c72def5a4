"""What a graph with towers is fed of a batch that several processes share."""

import numpy as np

from parity.spec.step_arrays import split_feeds


def feed_own_rows(strategy, placeholders, inputs, state):
    """Return what to feed for the rows of this process's replicas, and the rows of each.

    Args:
      strategy: a Strategy, whose `_own` says which of all replicas are this process's.
      placeholders: name -> placeholder for the rows of all towers of the graph.
      inputs: StepInputs, which need have no other process's rows.
      state: name -> recurrent state before the batch, [batch, layers, hidden].

    Returns:
      Placeholder -> array, and a list of numbers of rows.
    """
    feeds = split_feeds(strategy.spec, inputs, state, strategy.replicas)[strategy._own]
    filled = {placeholders[name]: _joined([feed[name] for feed in feeds]) for name in feeds[0]}
    # zero on a replica without a real token, whose loss is zero by its lengths here
    filled[placeholders["scale"]] = max(feed["scale"] for feed in feeds)
    return filled, [len(feed["lengths"]) for feed in feeds]


def _joined(parts):
    """Return the rows of some replicas in one array, padded to the longest of them."""
    longest = np.max([part.shape[1:] for part in parts], axis=0, initial=0)
    padded = []
    for part in parts:
        missing = [most - size for most, size in zip(longest, part.shape[1:], strict=True)]
        padded.append(np.pad(part, [(0, 0), *((0, each) for each in missing)]))
    return np.concatenate(padded)
