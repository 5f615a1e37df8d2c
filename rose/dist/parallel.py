"""How a model is spread over processes: the sizes, this process's place, and the groups it talks to."""

from dataclasses import dataclass, field

from rose.dist.group import Group, SingleGroup
from rose.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How many ways to split.

    tp_size: tensor parallel, attention heads and vocabulary. ep_size: expert parallel, whole experts.
    Only 1 is served so far; anything else raises ConfigError.
    """

    tp_size: int = 1
    ep_size: int = 1

    def __post_init__(self) -> None:
        for name, size in (("tp_size", self.tp_size), ("ep_size", self.ep_size)):
            if size != 1:
                raise ConfigError(f"{name} must be 1: rose runs on one device so far, got {size}")


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """The groups of one process, handed to the layers that communicate. The default is a process on its own."""

    tp: Group = field(default_factory=SingleGroup)
    ep: Group = field(default_factory=SingleGroup)

    @classmethod
    def create(cls, config: ParallelConfig) -> "ParallelContext":
        """Join the groups that `config` asks for."""
        del config  # Every size is 1, so there is nobody to find.
        return cls()
