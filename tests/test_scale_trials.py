"""Trainings on hosts of this machine send what the model says that they send."""

import pytest

from parity.twins.launch.zipf_text import write_zipf_text
from parity.twins.links.hosts import hosts
from parity.twins.scale.engines import ENGINES, RINGS
from parity.twins.scale.gradients import gradients
from parity.twins.scale.model import Link, ring
from parity.twins.scale.trials import Trials
from parity.twins.spec.presets import preset

STEPS = 8


@pytest.mark.hosts
@pytest.mark.parametrize("side", RINGS)
def test_two_hosts_send_what_a_ring_sends(side, tmp_path):
    spec = preset("language-model", "tiny").replace(optimizer="sgd", batch_size=4)
    spec, data = write_zipf_text(spec, STEPS, tmp_path)
    with hosts(2) as two, Trials(side, two, data, tmp_path) as trials:
        alone = trials.side_by_side(spec.replace(batch_size=2), 2, STEPS)
        together = trials.together(spec, 2, STEPS)
    assert alone.seconds > 0
    assert alone.sent == 0
    assert together.seconds > 0
    size = gradients(spec, 4).dense
    expected = ring(2, size, Link(0.0, 1.0), ENGINES[side]).sent
    # with the headers of packets; in TensorFlow also with the weights, once
    assert expected < together.sent < 1.1 * expected + 1.1 * size / STEPS + 10_000
