"""Real data that every installation has: scikit-learn's digits and Python's own manual."""

import torch

from minidist.train.text import characters, text

__all__ = ["characters", "digits", "text"]


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Handwritten digits of scikit-learn (Alpaydin and Kaynak, 1998): 1,797 images and labels.

    An image is float32 [1, 8, 8], from 0 (paper) to 1 (ink).
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow to import

    pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    return (pixels.float() / 16).view(-1, 1, 8, 8), labels.long()
