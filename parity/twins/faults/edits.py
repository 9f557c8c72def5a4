"""Short ways to write the edits of a fault."""

from parity.twins.faults.fault import Edit

Edits = dict[str, tuple[Edit, ...]]


def tensorflow(file: str, *changes: tuple[str, str]) -> Edits:
    """Return edits of a file of tf_impl."""
    return {"tensorflow": tuple(Edit(f"tf_impl/{file}", *change) for change in changes)}


def paddle(file: str, *changes: tuple[str, str]) -> Edits:
    """Return edits of a file of paddle_impl."""
    return {"paddle": tuple(Edit(f"paddle_impl/{file}", *change) for change in changes)}


def mirrored(file: str, *changes: tuple[str, str]) -> Edits:
    """Return edits of a file that both sides have, given as TensorFlow's side has them."""

    def in_paddle(text: str) -> str:
        return (
            text.replace("tf.reduce_", "paddle.")
            .replace("tf.nn.", "F.")
            .replace("tf.sigmoid", "F.sigmoid")
            .replace("tf.expand_dims", "paddle.unsqueeze")
            .replace("tf.", "paddle.")
        )

    translated = [(in_paddle(old), in_paddle(new)) for old, new in changes]
    return tensorflow(file, *changes) | paddle(file, *translated)


def joined(*several: Edits) -> Edits:
    """Return the edits of several files as those of one fault."""
    sides = dict.fromkeys(side for edits in several for side in edits)
    return {side: tuple(e for edits in several for e in edits.get(side, ())) for side in sides}


def shared(file: str, *changes: tuple[str, str]) -> Edits:
    """Return edits of a file that both sides read; planted in the copy that one side runs."""
    edits = tuple(Edit(file, *change) for change in changes)
    return {"tensorflow": edits, "paddle": edits}
