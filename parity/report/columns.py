"""What the columns of a report's tables hold, each in a sentence for the page."""

import re
from collections.abc import Iterable

# A pattern of headers (of which line breaks have become spaces) -> what the column holds.
_MEANINGS = {
    # of the table of rungs
    "precision": "The floating-point type that both sides trained in.",
    "rung": "The stage of a training step.",
    "(.+) absolute": (
        "The largest |a - b| of any element, a and b being two sides that differ in nothing "
        "but the framework."
    ),
    "absolute": "The largest |a - b| of any element, a and b being the two sides.",
    "(.+ )?relative": (
        "The same, divided by the largest magnitude in the element's tensor. All columns of "
        "distances from here on are relative in this way."
    ),
    "(.+)-oracle": (
        "The distance of that framework from the oracle: the same network in float64 NumPy, "
        "trained by itself from the same initial weights."
    ),
    "replica counts": (
        "The distance between trainings that share each batch among different numbers of "
        "replicas, in one framework."
    ),
    "strategies": "The distance between two ways of running the replicas, in one framework.",
    "kernels": (
        "The distance between the textbook's layers and the faster ones that replace them, in "
        "one framework."
    ),
    "processes": (
        "The distance between replicas in one process and in several, in one framework."
    ),
    "one step to oracle": (
        "The distance from what the oracle computes for this step alone, from the weights that "
        "the side had before it; clipping, optimizer and weight each from what the side itself "
        "computed just before. Errors of earlier steps do not count."
    ),
    "element bound": "How much an element may differ, as a share of its own magnitude.",
    "tensor bound": (
        "How much more it may differ, as a share of the largest magnitude in its tensor: the "
        "rounding of a sum is that of its largest terms."
    ),
    "step bound": (
        "How much more it may differ, as a share of the largest magnitude in all tensors of "
        "its kind at that step, such as all gradients."
    ),
    "rounding bound": (
        "How much one step may differ from the oracle's, as a multiple of the rounding error "
        "of that tensor at that step, which is measured on the oracle."
    ),
    "allowed": "How much that element may differ.",
    "used": ("The largest share of its bound that any element used; above 100% is a mismatch."),
    "where .*worst": "The element with the largest relative distance, and its step.",
    # of the table of staleness
    "asynchronous side": "The side; each of its replicas updates the weights by itself.",
    "updates": "The number of updates that were recorded.",
    "mean staleness": (
        "The mean number of other updates between a replica's reading of the weights and its "
        "own update."
    ),
    "staleness .*": "The number of updates with that staleness.",
    # of the table of what an isolated run found
    "wrong tensor": "A tensor that exceeds its bound although all its inputs were right.",
    "side": "The side, or the pair of sides, in which it was found.",
    "elements": "How many of the tensor's elements exceed the bound.",
    "difference": "The |a - b| of the element farthest beyond its bound.",
    # of the table of trainings
    "trained alone": "A side, trained without a trace and without the other side running.",
    "steps": "How many steps it trained.",
    "tokens/s median": "The median speed, in real tokens (not padding) per second.",
    "tokens/s spread": "The speeds of the slowest and the fastest half second.",
    "waiting for data": "The share of the time in which a step waited for its batch.",
    "test perplexity": "The perplexity on the test text, which is e to the loss per token.",
    "lowest possible": "The perplexity of a model that knew how the text was generated.",
    "test BLEU": "How much the decoded test sentences resemble their references, of 100.",
    "exact answers": "The share of decoded test sentences that equal their references.",
}


def meanings(headers: Iterable[str]) -> dict[str, str]:
    """Return what columns hold: header -> a sentence, headers with the same one together.

    A header that nothing here explains is left out: a report is worth more than its legend. A
    test sees that there is none.
    """
    found: dict[str, list[str]] = {}
    for header in (each.replace("-\n", "-").replace("\n", " ") for each in headers):
        meaning = next((m for key, m in _MEANINGS.items() if re.fullmatch(key, header)), None)
        if meaning is not None:
            found.setdefault(meaning, []).append(header)
    return {", ".join(names): meaning for meaning, names in found.items()}
