"""A module round another one: what is saved and loaded is the inner one's alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn

PREFIX = "module."


class Wrapper(nn.Module):
    """A module whose state dict is that of `module`, by the same names, without "module.".

    PyTorch's wrapper puts "module." before every name; dicts of that kind can be loaded too.

    Args:
        module: the inner one.

    Attributes:
        synchronising: whether what begins now is to be synchronised between ranks.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.synchronising = True
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards of the forwards within it add up gradients on this rank, and send nothing."""
        before, self.synchronising = self.synchronising, False
        try:
            yield
        finally:
            self.synchronising = before

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the inner module's."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As the inner module's; names may also begin with "module."."""
        bare = set(self.module.state_dict())
        plain = {
            name if name in bare else name.removeprefix(PREFIX): value
            for name, value in state_dict.items()
        }
        return self.module.load_state_dict(plain, strict, assign)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Neither pickle nor copy: hooks and the process group belong to this process."""
        raise TypeError(
            f"rank {dist.get_rank()}: a {type(self).__name__} cannot be copied or pickled: its "
            "hooks and its process group belong to this process; take its .module, or state_dict()"
        )


def _add_prefix(wrapper: Wrapper, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """Where the wrapper is itself a part of what is loaded, its names lack "module." too."""
    bare = set(wrapper.module.state_dict())
    for name in [name for name in state_dict if name.startswith(prefix)]:
        inner = name.removeprefix(prefix)
        if inner in bare:
            state_dict[f"{prefix}{PREFIX}{inner}"] = state_dict.pop(name)
