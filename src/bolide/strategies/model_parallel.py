"""ModelParallelStrategy: tensor parallelism and FSDP over a mesh of two dimensions, applied in `configure_model`.

Owns the mesh and who reads which data. The module splits itself, with torch's `parallelize_module` and `fully_shard`,
over `self.device_mesh["tensor_parallel"]` and `self.device_mesh["data_parallel"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.protocols import Optimizable
from bolide.strategies.sharded import ShardedStrategy


class ModelParallelStrategy(ShardedStrategy):
    """The module is split within groups of processes, and its data over these groups.

    Args:
        data_parallel_size: how many groups; "auto": one for each machine.
        tensor_parallel_size: how many processes a group has; "auto": those of a machine.
        save_distributed_checkpoint: whether a checkpoint is a folder to which each process writes its part; if not, it
            is a file with whole tensors, gathered on the first process. Any strategy reads both.
        kwargs: `ParallelStrategy`'s arguments.

    Example::

        class Model(LightningModule):
            def configure_model(self):
                plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
                parallelize_module(self.net, self.device_mesh["tensor_parallel"], plan)
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])
    """

    strategy_name = "model_parallel"

    def __init__(
        self,
        *,
        data_parallel_size: int | Literal["auto"] = "auto",
        tensor_parallel_size: int | Literal["auto"] = "auto",
        save_distributed_checkpoint: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(saves_parts=bool(save_distributed_checkpoint), **kwargs)
        sizes = {"data_parallel_size": data_parallel_size, "tensor_parallel_size": tensor_parallel_size}
        wrong = [
            f"ModelParallelStrategy({name}={size!r}) must be a number of at least 1, or 'auto'"
            for name, size in sizes.items()
            if size != "auto" and (not isinstance(size, int) or isinstance(size, bool) or size < 1)
        ]
        if wrong:
            raise ConfigError(wrong)
        self._sizes = (data_parallel_size, tensor_parallel_size)
        self.mesh: DeviceMesh | None = None

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The mesh, with the dimensions "data_parallel" and "tensor_parallel"; there once a run has begun."""
        return self.mesh

    def start(self, exact: bool = False) -> None:
        """Opens the group of processes and makes the mesh.

        Raises:
            ConfigError: the sizes do not give the number of processes.
        """
        super().start(exact)
        if self.mesh is not None:
            return
        size = self.world_size
        data, tensor = self._sizes
        if data == "auto" and tensor == "auto":
            tensor = self.num_processes
        if tensor == "auto":
            tensor = size // int(data)
        if data == "auto":
            data = size // int(tensor)
        if int(data) * int(tensor) != size:
            raise ConfigError(
                f"ModelParallelStrategy(data_parallel_size={data}, tensor_parallel_size={tensor}) is for "
                f"{int(data) * int(tensor)} processes, and there are {size}"
            )
        names = ("data_parallel", "tensor_parallel")
        self.mesh = init_device_mesh(self._root_device.type, (int(data), int(tensor)), mesh_dim_names=names)

    @property
    def data_rank(self) -> int:
        """Which part of each global batch this process has: the same for all of a tensor-parallel group."""
        return self.mesh["data_parallel"].get_local_rank() if self.mesh is not None else 0

    @property
    def data_size(self) -> int:
        """Into how many parts each global batch is split."""
        return self.mesh["data_parallel"].size() if self.mesh is not None else 1

    @property
    def counting_ranks(self) -> list[int]:
        """One process of each tensor-parallel group: the others have read the same samples."""
        return [int(rank) for rank in self.mesh.mesh[:, 0]] if self.mesh is not None else [0]

    def prepare(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """Places the module, which configure_model has split, and builds the optimizers.

        Raises:
            UserCodeError: it is not split, or its copies would not be kept the same.
        """
        module = self.place(module)
        split = any(isinstance(p, DTensor) for p in module.parameters())
        if self.world_size > 1 and not split:
            raise UserCodeError(
                f"{type(module).__name__} is not split over the mesh: define configure_model, and call there "
                'parallelize_module(part, self.device_mesh["tensor_parallel"], plan), and for several data-parallel '
                'groups fully_shard(part, mesh=self.device_mesh["data_parallel"])'
            )
        if self.data_size > 1 and not any(isinstance(part, FSDPModule) for part in module.modules()):
            raise UserCodeError(
                f"There are {self.data_size} data-parallel groups, and nothing exchanges their gradients: call "
                'fully_shard(part, mesh=self.device_mesh["data_parallel"]) in configure_model'
            )
        return self.built(module, build_optimizers)
