"""What the frames of a stack say."""

from torch import nn

from dsexplore.trace import frames


def test_module_calls_on_the_stack_are_counted() -> None:
    class Asking(nn.Module):
        def forward(self) -> int:
            return frames.calls_in_progress()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Asking()

        def forward(self) -> int:
            return int(self.inner())

    assert frames.calls_in_progress() == 0
    assert Asking()() == 1
    assert Outer()() == 2
