"""A small convolutional network for small grey images: seconds on one core."""

from __future__ import annotations

from torch import Tensor, nn

from longtail.models.heads import HeadFactory


class SmallConvNet(nn.Module):
    """Two 3 x 3 convolutions, one pooling, one hidden layer, one head.

    Args:
        image_shape: (channels, height, width); the pooling leaves out an odd last row or column.
        head: makes the last layer, given the width of the features.
    """

    def __init__(self, *, image_shape: tuple[int, int, int], head: HeadFactory) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 2) * (width // 2), 64),
            nn.ReLU(),
        )
        self.fc = head(64)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, num_classes)."""
        return self.fc(self.features(images))  # type: ignore[no-any-return]
