"""Which checks of whole runs a run has made, as cases of its coverage."""

from parity.compare.coverage import Fact
from parity.trace.rungs import CHECKS
from parity.twins.compare.verdict import RunVerdict
from parity.twins.spec.networks.network import Network

_MEANINGS = {
    "evaluation": "A side's loss, number of tokens and perplexity of validation and test text "
    "were compared with the oracle's.",
    "answers": "The answers of sides that loaded the same checkpoint, and their scores, were "
    "compared.",
    "resume": "A checkpoint was resumed, and the steps after it were those of the run that "
    "went on.",
    "repeat": "A run was made twice, and its bits compared.",
    "untraced": "The losses of a training that recorded nothing were those of the recorded "
    "one.",
    "counting": "The tokens that a speed rests on were counted again in the batches.",
}


def check_facts(verdict: RunVerdict, network: Network) -> list[Fact]:
    """Return how many comparisons each check made in one precision.

    Args:
      verdict: the verdict, after the last check.
      network: the network that was trained.
    """
    facts = []
    for check in CHECKS:
        count = sum(check in rungs for rungs in verdict.pairs.values())
        applies = not verdict.isolated and (check != "answers" or network.decodes)
        facts.append(
            Fact(f"{check} checked", _MEANINGS[check], count, 0, "comparisons", applies)
        )
    return facts
