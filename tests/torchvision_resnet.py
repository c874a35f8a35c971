"""A ResNet with the modules, names and arithmetic of torchvision.models.resnet, which the tests' Python does not have."""
from torch import nn


def convolution(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        sizes = [(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)]  # kernel, stride
        channels = [inputs] + [width] * (len(sizes) - 1) + [outputs]
        for i, (kernel, step) in enumerate(sizes):
            setattr(self, f"conv{i + 1}", convolution(channels[i], channels[i + 1], kernel, step))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(channels[i + 1]))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        self.convolutions = len(sizes)

    def forward(self, x):
        y = x
        for i in range(1, self.convolutions + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.convolutions:
                y = self.relu(y)
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """`blocks` per stage. `small` has the 3 x 3 stem without a pool that is common for small images."""

    def __init__(self, blocks, bottleneck, width, classes, channels, small):
        super().__init__()
        self.conv1 = convolution(channels, width, *((3, 1) if small else (7, 2)))
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        inputs = width
        for stage, count in enumerate(blocks):
            layer = []
            for i in range(count):
                layer.append(Block(inputs, width << stage, 2 if stage > 0 and i == 0 else 1, bottleneck))
                inputs = (4 if bottleneck else 1) * (width << stage)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
        self.stages = len(blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))
