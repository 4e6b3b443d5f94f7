"""A small convolutional network for small grey images: seconds on one core."""

from __future__ import annotations

from torch import Tensor, nn


class SmallConvNet(nn.Module):
    """Two 3 x 3 convolutions, one pooling, one hidden layer, one linear head.

    Args:
        num_classes: width of the head.
        image_shape: (channels, height, width); height and width must be even.
    """

    def __init__(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
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
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, num_classes)."""
        return self.fc(self.features(images))  # type: ignore[no-any-return]
