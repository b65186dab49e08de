"""Output shapes of a script's earlier pipeline stages, found by running ranks of these stages.

A stage without input shapes receives them in a message from the stage before it, whose rank no process runs. So one
rank of each earlier stage is run, in order, in a process of its own, with the messages of the stages before it,
until it has run its module once. Ranks of one world that run together share these messages through a folder.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsexplore._internal.output import writing
from dsexplore._internal.progress import track
from dsexplore._internal.torch_internals.pipelining import output_message, rank_of_stage
from dsexplore._internal.worlds.simulated.pipeline import StageShapes

RunUntilStage = Callable[[int, int, Mapping[int, Any]], Any]
"""Runs a rank until one of its stages knows its output shapes, and returns that stage's message.

Called with the rank, the stage's index, and {index: message} of earlier stages."""


class ShapesKnown(BaseException):
    """Ends a program in the first step of its schedule, when the wanted stage knows its output shapes.

    No ``except Exception`` of the program catches it.

    Args:
        message: the stage's message to the next one.
    """

    def __init__(self, message: Any) -> None:
        self.message = message
        super().__init__("the shapes of a pipeline stage are known")


@dataclass
class EarlierStages:
    """The messages with output shapes of the stages before a rank's own.

    Args:
        run_until_stage: runs a rank of another stage.
        folder: folder in which messages are shared with other ranks; empty to share none.
        messages: known messages, by index of their stage.
        wanted: stage whose message ends the program; None to run the whole program.
        rank: the rank that this process runs.
    """

    run_until_stage: RunUntilStage
    folder: str = ""
    messages: dict[int, Any] = field(default_factory=dict)
    wanted: int | None = None
    rank: int = 0

    def shapes(self) -> StageShapes:
        """Return the callbacks by which a simulated world asks for and records shapes of stages."""
        return StageShapes(self.ask, self.record)

    def ask(self, stage: Any, source: int) -> Any:
        """Return the message of stage `source`; ranks of it and of the stages before are run if needed.

        Args:
            stage: a stage of this rank.
            source: index of the stage before it.
        """
        with track("asking earlier pipeline stages for shapes", source + 1, "stages") as work:
            for index in range(source + 1):
                if index not in self.messages:
                    rank = rank_of_stage(stage, index)
                    shared = self._shared(rank, index)
                    self.messages[index] = shared or self.run_until_stage(rank, index, self.messages)
                    self._share(rank, index)
                work.advance()
        return self.messages[source]

    def record(self, stage: Any) -> None:
        """Record the output shapes of a stage of this rank, and share them with other ranks.

        Raises:
            ShapesKnown: the stage is the wanted one, so the program ends here.
        """
        index = stage.stage_index
        self.messages[index] = output_message(stage)
        self._share(self.rank, index)
        if index == self.wanted:
            raise ShapesKnown(self.messages[index])

    def _shared(self, rank: int, index: int) -> Any:
        """Return the message that a rank's stage has shared; None if there is none yet."""
        file = self._file(rank, index)
        return pickle.loads(file.read_bytes()) if file is not None and file.exists() else None

    def _share(self, rank: int, index: int) -> None:
        file = self._file(rank, index)
        if file is not None and not file.exists():
            with writing(file) as part:
                part.write_bytes(pickle.dumps(self.messages[index]))

    def _file(self, rank: int, index: int) -> Path | None:
        return Path(self.folder, f"stage-{index}-of-rank-{rank}") if self.folder else None
