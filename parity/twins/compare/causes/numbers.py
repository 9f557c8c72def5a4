"""Numbers as a cause names them: rounded to a narrower precision, and with enough digits."""

import numpy as np

# run's precision -> the narrower ones that a side may have rounded to
NARROWER = {"float64": ("float32", "float16", "bfloat16"), "float32": ("float16", "bfloat16")}


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array rounded to a precision, and held in its own.

    Args:
      dtype: "float32", "float16" or "bfloat16", the upper half of a float32.
    """
    if dtype != "bfloat16":
        return np.asarray(array).astype(dtype).astype(array.dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    # to the nearest, and to the even one of two that are equally near
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return near.astype(np.uint32).view(np.float32).astype(array.dtype)


def rounded_number(value: float, dtype: str) -> float:
    """Return a number rounded to a precision."""
    return float(rounded(np.array([value], np.float64), dtype)[0])


def telling(value: float, right: float) -> str:
    """Return a number with six digits, or as many as tell it from the right one."""
    for digits in range(6, 17):
        text = f"{value:.{digits}g}"
        if text != f"{right:.{digits}g}":
            return text
    return f"{value:.17g}"
