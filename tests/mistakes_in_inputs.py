"""Mistakes in schedule, masks, initial values and in sharing a batch among replicas."""

from mistakes_in_text import WHOLE
from planting import Mistake, witnesses

SCHEDULE = (
    Mistake(
        "the rate decays an epoch late",
        "parity/twins/spec/training.py",
        "max(epoch + 1 - training.decay_after, 0)",
        "max(epoch - training.decay_after, 0)",
        witnesses(
            "schedule",
            "the_rate_of_every_epoch_is_the_published_one",
            "a_schedule_by_hand",
            "every_step_is_trained_at_the_rate_of_its_epoch",
        )
        + WHOLE,
    ),
    Mistake(
        "the loop carries the state over the end of an epoch",
        "parity/twins/training/train_steps.py",
        "if state is None or not inputs.carry:",
        "if state is None:",
        witnesses(
            "schedule",
            "the_state_is_carried_within_an_epoch_and_zero_at_its_start",
            "sentences_carry_no_state",
        ),
    ),
    Mistake(
        "throughput counts padding",
        "parity/twins/training/train_steps.py",
        "meter.stop(inputs.num_tokens,",
        "meter.stop(inputs.positions,",
        witnesses("schedule", "the_meter_counts_the_real_targets_of_the_batches"),
    ),
    Mistake(
        "a loss per token is divided by padding too",
        "parity/twins/spec/step_arrays.py",
        'return max(self.num_tokens, 1) if self.loss_per == "token" else self.rows',
        'return self.positions if self.loss_per == "token" else self.rows',
        witnesses("schedule", "the_loss_is_divided_by_what_the_spec_says")
        + witnesses("replicas", "the_shares_of_the_loss_add_up_to_the_mean")
        + witnesses(
            "pytorch", "the_language_model_trains_as_pytorchs", "seq2seq_trains_as_pytorchs"
        ),
    ),
)

MASKS = (
    Mistake(
        "all steps have the same masks",
        "parity/twins/spec/step_arrays.py",
        "np.random.PCG64([spec.training.seed, step, place])",
        "np.random.PCG64([spec.training.seed, place])",
        witnesses(
            "masks",
            "masks_of_places_and_steps_are_unrelated",
            "a_mask_depends_on_seed_step_and_place_alone",
        )
        + witnesses("schedule", "every_step_reads_its_own_batch_and_masks"),
    ),
    Mistake(
        "masks are not scaled",
        "parity/twins/spec/step_arrays.py",
        "(drawn < model.keep).astype(dtype) / dtype.type(model.keep)",
        "(drawn < model.keep).astype(dtype)",
        witnesses("masks", "masks_hold_zero_and_one_over_keep_in_the_right_shares"),
    ),
    Mistake(
        "a row drops the same units at all times",
        "parity/twins/spec/step_arrays.py",
        "masks[name] = (drawn",
        "drawn = drawn[:, :1] + np.zeros_like(drawn)\n        masks[name] = (drawn",
        witnesses("masks", "a_mask_does_not_repeat_along_any_axis"),
    ),
    Mistake(
        "the first time step is never dropped",
        "parity/twins/spec/step_arrays.py",
        "masks[name] = (drawn",
        "drawn[:, 0] = 0\n        masks[name] = (drawn",
        witnesses("masks", "each_row_step_and_unit_is_dropped_as_often_as_any"),
    ),
    Mistake(
        "evaluation drops units",
        "parity/twins/spec/step_arrays.py",
        "    if train:\n",
        "    if True:\n",
        witnesses("masks", "nothing_is_dropped_without_dropout_or_in_evaluation")
        + witnesses("scores", "perplexity_is_that_of_the_mean_token_not_of_the_mean_batch"),
    ),
    Mistake(
        "replicas get the masks of other rows",
        "parity/twins/spec/step_arrays.py",
        'whole[f"mask/{name}"], axes[f"mask/{name}"] = array, mask_axes[name]',
        'whole[f"mask/{name}"], axes[f"mask/{name}"] = np.roll(array, 1, 0), mask_axes[name]',
        witnesses("masks", "replicas_together_have_the_mask_of_the_whole_batch")
        + witnesses("replicas", "every_real_value_is_fed_to_one_replica_in_its_place"),
    ),
)

INITIAL_VALUES = (
    Mistake(
        "all parameters have the same random numbers",
        "parity/twins/spec/initial.py",
        "np.random.PCG64([spec.training.seed, index])",
        "np.random.PCG64([spec.training.seed])",
        witnesses("initial_values", "parameters_and_seeds_are_unrelated"),
    ),
    Mistake(
        "weights are twice as large",
        "parity/twins/spec/initial.py",
        "(2 * values - 1) * scale",
        "(2 * values - 1) * 2 * scale",
        witnesses("initial_values", "weights_are_uniform_between_plus_and_minus_the_scale"),
    ),
    Mistake(
        "two gates of a layer start alike",
        "parity/twins/spec/initial.py",
        "values = generator.random(parameter.shape)",
        "values = generator.random(parameter.shape)\n"
        "        half = parameter.shape[-1] // 2\n"
        "        values[..., half : 2 * half] = values[..., :half]",
        witnesses("initial_values", "the_gates_of_a_layer_start_from_different_values"),
    ),
    Mistake(
        "weights are drawn in the precision of the run",
        "parity/twins/spec/initial.py",
        "generator.random(parameter.shape)",
        "generator.random(parameter.shape, dtype=dtype.type)",
        witnesses(
            "initial_values",
            "float32_starts_from_the_same_values_rounded_to_the_nearest",
        ),
    ),
    Mistake(
        "Adam's powers start at 1",
        "parity/twins/spec/initial.py",
        '{"beta1_power": spec.training.beta1, "beta2_power": spec.training.beta2}',
        '{"beta1_power": 1.0, "beta2_power": 1.0}',
        witnesses("initial_values", "adam_starts_as_in_its_paper")
        + witnesses("checkpoint", "a_checkpoint_holds_what_the_step_before_left"),
    ),
    Mistake(
        "SGD has a state like Adam's",
        "parity/twins/spec/parameters.py",
        'SLOTS = {"sgd": (),',
        'SLOTS = {"sgd": ("m",),',
        witnesses("initial_values", "sgd_starts_from_weights_alone"),
    ),
    Mistake(
        "the state at the start of a text is not zero",
        "parity/twins/spec/initial.py",
        "name: np.zeros((rows, *shape), spec.training.dtype)",
        "name: np.full((rows, *shape), 1e-3, spec.training.dtype)",
        witnesses("initial_values", "a_text_starts_from_a_state_of_zeros")
        + witnesses("schedule", "the_state_is_carried_within_an_epoch_and_zero_at_its_start")
        + WHOLE,
    ),
)

REPLICAS = (
    Mistake(
        "the last replicas get the rows that are left over",
        "parity/twins/spec/replicas.py",
        "[base + 1] * more + [base] * (count - more)",
        "[base] * (count - more) + [base + 1] * more",
        witnesses("replicas", "rows_are_shared_evenly_the_first_replicas_first"),
    ),
    Mistake(
        "the last real value of a row is set to zero before comparing",
        "parity/twins/spec/step_arrays.py",
        "np.arange(array.shape[place]) >= lengths[name][:, None]",
        "np.arange(array.shape[place]) >= lengths[name][:, None] - 1",
        witnesses(
            "replicas",
            "joining_keeps_every_real_value_and_zeroes_the_padding_alone",
            "joining_puts_the_loss_of_each_real_token_in_its_place",
        ),
    ),
)

INPUTS = (*SCHEDULE, *MASKS, *INITIAL_VALUES, *REPLICAS)
