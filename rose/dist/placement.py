"""A process's place in the groups that a model is split over: all that loading one rank's part needs to know."""

from dataclasses import dataclass
from typing import Literal

from rose.errors import ConfigError

# tp: attention heads and vocabulary; ep: whole experts.
GroupName = Literal["tp", "ep"]


@dataclass(frozen=True, slots=True)
class GroupRank:
    """Process number `rank`, from 0, of a group of `size`. Raises ConfigError where there is no such process."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"there is no rank {self.rank} in a group of {self.size}")


@dataclass(frozen=True, slots=True)
class Placement:
    """A rank's place in each group. The default is a process on its own, which holds everything."""

    tp: GroupRank = GroupRank()
    ep: GroupRank = GroupRank()

    def of(self, group: GroupName) -> GroupRank:
        """The place in one of the groups."""
        return self.tp if group == "tp" else self.ep

    def __str__(self) -> str:
        """As messages say it."""
        return f"tp rank {self.tp.rank} of {self.tp.size} and ep rank {self.ep.rank} of {self.ep.size}"


ALONE = Placement()
