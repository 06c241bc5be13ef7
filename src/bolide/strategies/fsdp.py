"""FSDPStrategy: torch's FSDP2 (`fully_shard`) around the module's parts.

Owns which parts are sharded, over which mesh, with which policies; the steps of the module are made forward methods of
it. What is common to sharded strategies is strategies/sharded's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from bolide.core.errors import ConfigError, UserCodeError, did_you_mean
from bolide.core.protocols import Optimizable
from bolide.strategies.sharded import ShardedStrategy, same_start

SHARDING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
STEPS = ("training_step", "validation_step", "test_step", "predict_step")
OWN = (
    "cpu_offload", "mixed_precision", "auto_wrap_policy", "activation_checkpointing", "activation_checkpointing_policy",
    "sharding_strategy", "state_dict_type", "device_mesh",
)  # fmt: skip


class FSDPStrategy(ShardedStrategy):
    """Each process keeps a part of the parameters, gradients and optimizer states.

    Args:
        cpu_offload: True, or torch's CPUOffloadPolicy: parts lie in the CPU's memory while they are not used.
        mixed_precision: torch's MixedPrecisionPolicy, or an object with its (or FSDP1's) dtypes.
        auto_wrap_policy: the classes of the parts that are gathered by themselves, or a function of a module that says
            so; without one, the whole module is gathered at once.
        activation_checkpointing: older name of the next.
        activation_checkpointing_policy: the classes whose activations are computed again in the backward pass, or a
            function.
        sharding_strategy: "FULL_SHARD", "SHARD_GRAD_OP" (parameters stay gathered after the forward pass),
            "HYBRID_SHARD" (sharded within a machine, or as `device_mesh` says, and replicated over them), "NO_SHARD".
        state_dict_type: "full": a checkpoint is a file with whole tensors, gathered on the first process; "sharded": a
            folder to which each process writes its part. Any strategy, and any number of processes, reads both.
        device_mesh: a DeviceMesh of one or two dimensions, or (replicas, shards).
        kwargs: `ParallelStrategy`'s arguments.

    Example::

        Trainer(devices=4, strategy=FSDPStrategy(auto_wrap_policy={nn.TransformerEncoderLayer}))
    """

    strategy_name = "fsdp"

    def __init__(
        self,
        *,
        cpu_offload: bool | CPUOffloadPolicy | None = None,
        mixed_precision: Any = None,
        auto_wrap_policy: Any = None,
        activation_checkpointing: Any = None,
        activation_checkpointing_policy: Any = None,
        sharding_strategy: Any = "FULL_SHARD",
        state_dict_type: str = "full",
        device_mesh: DeviceMesh | tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        known = ("process_group_backend", "timeout", "start_method", "uneven", "cluster_environment", "checkpoint_io",
                 "accelerator", "parallel_devices", "precision_plugin")  # fmt: skip
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            raise ConfigError(
                f"FSDPStrategy({unknown[0]}=...) is no argument of it: it stands on torch's fully_shard (FSDP2)."
                + did_you_mean(unknown[0], (*OWN, *known))
            )
        super().__init__(saves_parts=state_dict_type == "sharded", **kwargs)
        name = str(getattr(sharding_strategy, "name", sharding_strategy)).upper()
        wrong = []
        if name not in SHARDING:
            wrong.append(f"FSDPStrategy(sharding_strategy={sharding_strategy!r}) must be one of {', '.join(SHARDING)}")
        if state_dict_type not in ("full", "sharded"):
            wrong.append(f"FSDPStrategy(state_dict_type={state_dict_type!r}) must be 'full' or 'sharded'")
        if isinstance(device_mesh, tuple) and len(device_mesh) != 2:
            wrong.append(f"FSDPStrategy(device_mesh={device_mesh!r}) must be (replicas, shards)")
        if activation_checkpointing is not None and activation_checkpointing_policy is not None:
            wrong.append("FSDPStrategy: activation_checkpointing is the older name of activation_checkpointing_policy")
        if wrong:
            raise ConfigError(wrong)
        self.sharding_strategy = name
        self.offload = offload_policy(cpu_offload)
        self.mixed_precision = mixed_policy(mixed_precision)
        self.auto_wrap_policy = auto_wrap_policy
        self.checkpointed = activation_checkpointing or activation_checkpointing_policy
        self._mesh_asked = device_mesh
        self.mesh: DeviceMesh | None = None

    def start(self, exact: bool = False) -> None:
        """Opens the group of processes and makes the mesh."""
        super().start(exact)
        if self.mesh is None:
            self.mesh = self._mesh()

    def _mesh(self) -> DeviceMesh:
        asked, kind, size = self._mesh_asked, self._root_device.type, self.world_size
        if isinstance(asked, DeviceMesh):
            return asked
        if asked is not None:
            if asked[0] * asked[1] != size:
                raise ConfigError(
                    f"FSDPStrategy(device_mesh={asked!r}) is for {asked[0] * asked[1]} processes, not {size}"
                )
            return init_device_mesh(kind, asked, mesh_dim_names=("replicate", "shard"))
        if self.sharding_strategy == "NO_SHARD":
            return init_device_mesh(kind, (size, 1), mesh_dim_names=("replicate", "shard"))
        if "HYBRID" in self.sharding_strategy:
            inside = self.num_processes
            return init_device_mesh(kind, (size // inside, inside), mesh_dim_names=("replicate", "shard"))
        return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))

    def prepare(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """Places the module, shards it, then builds the optimizers of the sharded parameters."""
        module = self.place(module)
        self.module = module
        if any(isinstance(part, FSDPModule) for part in module.modules()):
            return self.built(module, build_optimizers)  # sharded by configure_model, or by the fit before
        same_start(module)
        if self.checkpointed:
            checkpoint_activations(module, self.checkpointed)
        kept = {"FULL_SHARD": None, "HYBRID_SHARD": None}.get(self.sharding_strategy, False)
        options: dict[str, Any] = {
            "mesh": self.mesh, "reshard_after_forward": kept, "mp_policy": self.mixed_precision,
            "offload_policy": self.offload,
        }  # fmt: skip
        for part in reversed(list(wrapped_parts(module, self.auto_wrap_policy))):  # the innermost first
            fully_shard(part, **options)
        if getattr(module, "automatic_optimization", True):
            fully_shard(module, **options)
            for name in STEPS:
                if callable(getattr(module, name, None)):
                    register_fsdp_forward_method(module, name)
        else:
            self._shard_children(module, options)
        self._sync = True
        return self.built(module, build_optimizers)

    def _shard_children(self, module: nn.Module, options: dict[str, Any]) -> None:
        """Manual optimization goes back within its step, so the step cannot be a forward pass of the whole module.

        Raises:
            UserCodeError: the module has parameters of its own, which no part's forward pass gathers.
        """
        own = [name for name, _ in module.named_parameters(recurse=False)]
        if own:
            raise UserCodeError(
                f"{type(module).__name__} has parameters of its own ({', '.join(own[:3])}), and manual optimization "
                "under FSDP gathers those of its parts only: put them into a part, such as self.net"
            )
        for child in module.children():
            if any(True for _ in child.parameters()) and not isinstance(child, FSDPModule):
                fully_shard(child, **options)

    def close(self) -> None:
        """Lets go of the module and the optimizers."""
        if self.module is not None:
            for name in STEPS:
                self.module.__dict__.pop(name, None)
        super().close()


def offload_policy(asked: Any) -> OffloadPolicy:
    """torch's policy; memory is pinned only where there is an accelerator that copies from it."""
    if isinstance(asked, OffloadPolicy):
        return asked
    if asked is None or asked is False or getattr(asked, "offload_params", True) is False:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=torch.cuda.is_available())


def mixed_policy(asked: Any) -> MixedPrecisionPolicy:
    """torch's policy, from itself or from FSDP1's object, whose `buffer_dtype` has no counterpart."""
    if isinstance(asked, MixedPrecisionPolicy):
        return asked
    if asked is None:
        return MixedPrecisionPolicy()
    param, reduce = getattr(asked, "param_dtype", None), getattr(asked, "reduce_dtype", None)
    if param is None and reduce is None:
        raise ConfigError(
            f"FSDPStrategy(mixed_precision={asked!r}) must be a torch.distributed.fsdp.MixedPrecisionPolicy"
        )
    return MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)


def chosen(policy: Any) -> Callable[[nn.Module], bool]:
    """Whether a policy (classes, or a function of a module) takes a part.

    Raises:
        ConfigError: neither.
    """
    if isinstance(policy, type):
        return lambda part: isinstance(part, policy)
    if isinstance(policy, Iterable):
        kinds = tuple(policy)
        return lambda part: isinstance(part, kinds)
    if callable(policy):
        return lambda part: bool(_asked(policy, part))
    raise ConfigError(
        f"FSDPStrategy(auto_wrap_policy={policy!r}) must be classes of modules, or a function of a module"
    )


def _asked(policy: Callable[..., Any], part: nn.Module) -> Any:
    """FSDP1's policies are asked with keywords; others with the part alone."""
    import inspect

    parameters = inspect.signature(policy).parameters
    if "nonwrapped_numel" in parameters:
        size = sum(p.numel() for p in part.parameters())
        return policy(module=part, recurse=False, nonwrapped_numel=size)
    return policy(part)


def wrapped_parts(module: nn.Module, policy: Any) -> Iterable[nn.Module]:
    """The parts that are gathered by themselves, the outermost first."""
    if policy is None:
        return []
    takes = chosen(policy)
    return [part for part in module.modules() if part is not module and takes(part)]


def checkpoint_activations(module: nn.Module, policy: Any) -> None:
    """Has the activations of some parts computed again in the backward pass."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    takes = chosen(policy)

    def wrap(part: nn.Module) -> nn.Module:
        return checkpoint_wrapper(part, checkpoint_impl=CheckpointImpl.NO_REENTRANT)

    apply_activation_checkpointing(module, checkpoint_wrapper_fn=wrap, check_fn=takes)
