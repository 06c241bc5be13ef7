"""DeepSpeedStrategy: DeepSpeed's engine around the module's steps, with ZeRO's stages 1 to 3 and its offloading.

Owns the engine, the passage of a step through it, and what it is asked at the end of an accumulation window. What the
arguments mean is strategies/deepspeed_config's, whole states are strategies/deepspeed_state's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn

from bolide.core import env
from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.hooks import overrides
from bolide.core.protocols import Optimizable
from bolide.precision import Precision
from bolide.strategies import deepspeed_config as settings
from bolide.strategies import deepspeed_setup as setup
from bolide.strategies import deepspeed_state as states
from bolide.strategies.control import ControlWord
from bolide.strategies.deepspeed_parts import (
    HELD,
    EngineOptimizer,
    EnginePrecision,
    Held,
    Router,
    engine_of,
    make_scheduler,
    the_one,
)
from bolide.strategies.parallel import SpreadStrategy, same_modules, trainable
from bolide.strategies.sharded import same_start
from bolide.strategies.strategy import plain_keys

EVALUATIONS = ("validation_step", "test_step", "predict_step")


class DeepSpeedStrategy(SpreadStrategy):
    """Optimizer states (stage 1), gradients (2) and parameters (3) are spread over the processes by DeepSpeed's ZeRO.

    Args:
        stage: 0 to 3; 2 by default.
        config: DeepSpeed's own configuration, a dictionary or the path of a JSON file; the environment variable
            PL_DEEPSPEED_CONFIG_PATH names one, too.
        arguments: those of the table in strategies/deepspeed_config (docs/distributed.md shows it), such as
            offload_optimizer, offload_parameters, overlap_comm, reduce_bucket_size; and `ParallelStrategy`'s.

    Raises:
        ConfigError: an unknown argument, or one that contradicts `config`.
        MissingPackageError: DeepSpeed is not installed.

    Example::

        Trainer(devices=4, strategy=DeepSpeedStrategy(stage=3, offload_optimizer=True), precision="bf16-mixed")
    """

    strategy_name = "deepspeed"
    gradients_on_parameters = False

    def __init__(self, *, stage: int | None = None, config: Any = None, **arguments: Any) -> None:
        wrong = settings.check_names(arguments)
        if wrong:
            raise ConfigError(wrong)
        super().__init__(**{name: value for name, value in arguments.items() if name in settings.OF_THE_GROUP})
        given = {name: value for name, value in arguments.items() if name not in settings.OF_THE_GROUP}
        if stage is not None:
            given["stage"] = stage
        source = "DeepSpeedStrategy(config=...)"
        if config is None and env.get("PL_DEEPSPEED_CONFIG_PATH"):
            config, source = env.get("PL_DEEPSPEED_CONFIG_PATH"), "PL_DEEPSPEED_CONFIG_PATH"
        read = settings.read_config(config, source) if config is not None else None
        self.config = settings.make_config(given, read)
        setup.need_package(f"strategy={self.strategy_name!r}")
        self.exclude_frozen_parameters = bool(given.get("exclude_frozen_parameters", False))
        self.remote_device = given.get("remote_device")
        self.logging_level = int(given.get("logging_level", settings.BY_NAME["logging_level"].default))
        self._half = False
        self._package: Any = None
        self._engine: Any = None
        self._engine_of: nn.Module | None = None
        self._groups: states.Groups = []
        self._schedulers: list[Any] = []
        self._precision: EnginePrecision | None = None
        self._open_losses = 0
        self._full: dict[str, Tensor] = {}

    @property
    def stage(self) -> int:
        """ZeRO's stage."""
        return int(settings.get(self.config, "zero_optimization.stage") or 0)

    @property
    def sharded(self) -> bool:
        """Whether each forward pass needs all ranks, as each has a part of the parameters."""
        return self.stage == 3

    @property
    def deepspeed_engine(self) -> Any:
        """DeepSpeed's engine, once a fit has begun."""
        return self._engine

    # ------------------------------------------------------------------ opening

    def make_precision(self, name: str | int | None) -> Precision:
        """The precision, of which DeepSpeed does the scaling of losses and the fp32 weights.

        Raises:
            ConfigError: one that DeepSpeed does not compute in.
        """
        made = EnginePrecision(name, self._root_device)
        self.config = settings.with_precision(self.config, made.precision)
        self._half = made.precision != "32-true"
        self._precision = made
        return made

    def start(self, exact: bool = False) -> None:
        """Opens the group of processes, and makes DeepSpeed use it.

        Raises:
            ConfigError: a compiler that was killed has left a lock, or an operator that is needed cannot be compiled.
        """
        if self._package is None:
            self._package = setup.load(self._root_device.type, self.logging_level)
            machines = max(1, self.world_size // self.num_processes)
            setup.refuse_stale_locks(setup.extensions_folders(), setup.operators(), machines)
            setup.refuse_unbuildable(self.config)
        super().start(exact)
        if env.get("LOCAL_RANK") is None:
            env.set("LOCAL_RANK", str(self.local_rank))  # by which DeepSpeed chooses the device
        if not self._package.comm.is_initialized():
            self._package.comm.init_distributed(dist_init_required=False, auto_mpi_discovery=False, verbose=False)

    def init_context(self, empty: bool | None = None) -> AbstractContextManager[Any]:
        """At stage 3 new parameters are split as they are made; else they are made on the device."""
        if self.stage != 3 or self._package is None or empty:
            return super().init_context(empty)
        context: AbstractContextManager[Any] = self._package.zero.Init(
            config_dict_or_path=self._final(manual=False), remote_device=self.remote_device,
            pin_memory=bool(settings.get(self.config, "zero_optimization.offload_param.pin_memory")),
        )  # fmt: skip
        return context

    # ------------------------------------------------------------------ placing

    def prepare(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """Places the module, builds the optimizer, and gives both to DeepSpeed; all start from rank 0's weights.

        Raises:
            UserCodeError: not exactly one optimizer, or one that DeepSpeed cannot step.
        """
        split = any(states.partitioned(p) for p in module.parameters())
        self.module = module = self.place(module) if not split else module
        if build_optimizers is None:
            self.optimizers = []
            if not split:
                same_modules(module)
                same_start(module)
            elif engine_of(module) is not None:
                self._engine, self._engine_of = engine_of(module), module
            else:
                self._open_engine(module, None, trains=False)
            return self.optimizers
        self._end_engine_of(module)
        same_modules(module)
        optimizer = None if self._makes_optimizer(module) else the_one(build_optimizers())
        if optimizer is not None:
            self._groups = [(group, list(group["params"])) for group in optimizer.param_groups]
        if self._half and not self._full:
            # DeepSpeed rounds the weights, and makes its own of full precision from those
            self._full = {
                name: p.detach().cpu().clone()
                for name, p in module.named_parameters()
                if p.dtype == torch.float32 and p.requires_grad and not states.partitioned(p)
            }
        self._open_engine(module, optimizer)
        if optimizer is None:
            optimizer = self._basic_optimizer()
            self._groups = [(optimizer.param_groups[0], trainable(module))]
        wanted = self.config.get("scheduler")
        self._schedulers = [make_scheduler(settings.without_auto(wanted), optimizer)] if wanted else []
        for name, parameter in module.named_parameters():
            if name in self._full:
                states.put_weight(parameter, self._full.pop(name))
        self._full = {}
        self._word = ControlWord(torch.float32, torch.device("cpu"))
        self._sync, self._open_losses = True, 0
        self.optimizers = [EngineOptimizer(self, optimizer)]
        return self.optimizers

    def _end_engine_of(self, module: nn.Module) -> None:
        """Takes the hooks of an earlier fit's engine out of the module; its weights of full precision go on."""
        before = engine_of(module)
        if before is None:
            return
        if self._half and not self._full:
            named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
            self._full = {name: states.whole_weight(p).cpu().clone() for name, p in named}
        before.destroy()
        del module.__dict__[HELD]
        self._engine = self._engine_of = None

    def _makes_optimizer(self, module: nn.Module) -> bool:
        """Whether DeepSpeed makes the optimizer, as its configuration says.

        Raises:
            UserCodeError: the module makes one, too.
        """
        wanted = self.config.get("optimizer")
        if wanted and overrides(module, "configure_optimizers"):
            raise UserCodeError(
                f"The configuration of DeepSpeed has an optimizer ({wanted.get('type')}), and "
                f"{type(module).__name__}.configure_optimizers makes one: leave one of them out"
            )
        return bool(wanted)

    def _basic_optimizer(self) -> Any:
        return self._engine.basic_optimizer

    def schedulers(self) -> list[Any]:
        """The schedulers that DeepSpeed's configuration asks for; they step with every optimizer step."""
        return self._schedulers

    def _open_engine(self, module: nn.Module, optimizer: Any, trains: bool = True) -> None:
        manual = not getattr(module, "automatic_optimization", True)
        config = self._final(manual, trains)
        own = trainable(module) if "optimizer" in config else None
        self._engine, *_ = self._package.initialize(
            model=Router(module), optimizer=optimizer, model_parameters=own, config=config, dist_init_required=False
        )
        self._engine_of = module
        module.__dict__[HELD] = Held(self._engine)
        if self._precision is not None:
            scales = bool(settings.get(config, "fp16.enabled")) and trains
            self._precision.loss_scaler = getattr(self._engine.optimizer, "loss_scaler", None) if scales else None
        activations = config.get("activation_checkpointing", {})
        if any(activations.values()):  # of deepspeed.checkpointing.checkpoint, which the module calls
            self._package.checkpointing.configure(
                None, partition_activations=activations.get("partition_activations"),
                contiguous_checkpointing=activations.get("contiguous_memory_optimization"),
                num_checkpoints=activations.get("number_checkpoints"),
                checkpoint_in_cpu=activations.get("cpu_checkpointing"),
                synchronize=activations.get("synchronize_checkpoint_boundary"),
            )  # fmt: skip

    def _final(self, manual: bool, trains: bool = True) -> dict[str, Any]:
        """The configuration as DeepSpeed is given it."""
        config = settings.without_auto(self.config)
        config.setdefault("gradient_clipping", 0.0)  # else DeepSpeed clips to 1
        config.pop("scheduler", None)  # the trainer steps it
        if not trains:
            config.pop("optimizer", None)
        if "optimizer" in config and self._root_device.type == "cpu":
            settings.put(config, "optimizer.params.torch_adam", True)  # its own must be compiled
        if manual:  # the module says when it steps, after any number of backward passes
            config["managed_gradient_accumulation"] = False
            if self.stage != 2:
                settings.put(config, "zero_optimization.overlap_comm", False)
        return config

    def close(self) -> None:
        """Lets go of the engine, the module and the optimizers."""
        if self._engine_of is not None:
            self._end_engine_of(self._engine_of)
        self._engine = self._engine_of = self._word = None
        self._full = {}
        self._groups = []
        super().close()

    # ------------------------------------------------------------------ a step

    def bind(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`training_step` goes through the engine, and at stage 3 the other steps, too: it gathers what they need."""
        engine = self._engine
        if engine is None or self._engine_of is not self.module:
            return method
        automatic = getattr(self.module, "automatic_optimization", True)
        if (name == "training_step" and automatic) or (name in EVALUATIONS and self.stage == 3):
            return lambda *args: engine(name, *args)
        return method

    @property
    def managed(self) -> bool:
        """Whether the window's end is known before its last backward pass: not so in manual optimization."""
        return self._engine is not None and bool(self._engine.managed_gradient_accumulation())

    def set_sync(self, on: bool) -> None:
        """Whether the next backward pass is the last of its accumulation window."""
        self._sync = on
        if self.managed:
            self._engine.set_gradient_accumulation_boundary(on)

    def before_backward(self, loss: Tensor) -> Tensor:
        """The loss with its batch's share; asked for by itself where the module goes back by its own `backward`.

        Raises:
            UserCodeError: DeepSpeed must do it here.
        """
        if self.stage == 0 or settings.get(self.config, "fp16.enabled"):
            raise UserCodeError(
                "`backward` of the module cannot take part under DeepSpeed at stage 0 or in fp16, where DeepSpeed must "
                "go back by itself: leave the method out, or write stage=2 and precision='bf16-mixed'"
            )
        self._open_losses += 1
        return self.shared(loss)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass, with the exchange of gradients.

        Raises:
            UserCodeError: an argument that DeepSpeed's backward pass does not have.
        """
        if args or set(kwargs) - {"retain_graph"}:
            raise UserCodeError("manual_backward under DeepSpeed takes retain_graph= and nothing else")
        loss = self.shared(loss)
        if not getattr(self.module, "automatic_optimization", True):
            loss = self._engine(None, loss)
        self._open_losses += 1
        self._engine.backward(loss, retain_graph=bool(kwargs.get("retain_graph")), scale_wrt_gas=False)
        self.after_backward()

    def clip(self, optimizer: Optimizable, limit: float, kind: str) -> Tensor | None:
        """Has DeepSpeed clip by the norm of all gradients of all ranks, within the step that follows.

        Raises:
            UserCodeError: clipping by value, or another limit than in DeepSpeed's configuration.
        """
        own = settings.get(self.config, "gradient_clipping")
        if own not in (None, settings.AUTO, 0, 0.0, limit):
            raise UserCodeError(
                f"gradient_clip_val={limit} contradicts gradient_clipping={own} in DeepSpeed's configuration; leave "
                "one of them out"
            )
        if self.stage == 0:
            if self.managed:
                return super().clip(optimizer, limit, kind)
            raise UserCodeError("clip_gradients in manual optimization needs DeepSpeed's stage 1 or higher")
        if kind == "value":
            raise UserCodeError(
                "gradient_clip_algorithm='value' is not there under DeepSpeed, where each rank has parts of the "
                "gradients: write 'norm'"
            )
        self._engine.optimizer.clip_grad = limit
        return None

    def scale_gradients(self, optimizer: Optimizable, factor: float) -> None:
        """Has DeepSpeed multiply the gradients by `factor` within the step that follows."""
        zero = self._engine.optimizer
        if not states.is_zero(zero):
            super().scale_gradients(optimizer, factor)
            return
        zero.override_loss_scale(zero.loss_scale / factor)

    def take_step(self) -> None:
        """The optimizer's step, by the engine."""
        engine = self._engine
        if self.managed and not self._sync:  # the window ended before anybody knew
            self._close_window()
        engine.step()
        self._open_losses = 0
        if states.is_zero(engine.optimizer):
            engine.optimizer.clip_grad = float(self._engine.gradient_clipping() or 0.0)
            engine.optimizer.custom_loss_scaler = False

    def _close_window(self) -> None:
        """Exchanges what a window holds that had no last backward pass."""
        engine, zero = self._engine, self._engine.optimizer
        engine.set_gradient_accumulation_boundary(True)
        if engine.zero_optimization_partition_gradients():
            zero.finalize_gradient_accumulation_boundary()
            return
        overlaps = getattr(zero, "overlap_comm", False)
        if overlaps:  # stage 1 would take it that the backward pass has exchanged them
            zero.overlap_comm = False
        engine.allreduce_gradients()
        if overlaps:
            zero.overlap_comm = True

    def forget_gradients(self) -> None:
        """Drops the gradients of a window that was left open."""
        if not self._open_losses:
            return
        self._open_losses = 0
        zero = self._engine.optimizer
        zero.zero_grad()
        for name in ("averaged_gradients", "all_grad_tensors"):
            held = getattr(zero, name, None)
            if held is not None:
                held.clear()
        if hasattr(zero, "micro_step_id"):
            zero.micro_step_id = -1 if self.stage < 3 else 0

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The module's weights by name, whole, on the CPU of the first process. All must call it."""
        assert self.module is not None
        return plain_keys(states.weights(self.module, self.is_global_zero, self.exclude_frozen_parameters))

    def stepping(self, optimizer: Optimizable) -> Any:
        """The optimizer within DeepSpeed's, whose learning rates are those of the steps."""
        return cast(EngineOptimizer, optimizer).optimizer

    def optimizer_state(self, optimizer: Optimizable) -> dict[str, Any]:
        """The optimizer's state, whole. All must call it."""
        return states.optimizer_state(self._engine.optimizer, self._groups, self.is_global_zero)

    def load_optimizer(self, optimizer: Optimizable, state: dict[str, Any]) -> None:
        """Takes a whole optimizer state, of which each rank keeps its part."""
        states.load_optimizer_state(self._engine.optimizer, self._groups, state)

    def whole_shapes(self, module: nn.Module) -> dict[str, torch.Size]:
        """The shapes of the weights that stage 3 has split."""
        named = module.named_parameters(remove_duplicate=False)
        return {name: states.shape_of(p) for name, p in named if states.partitioned(p)}

    def localized(self, module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whole weights by name as `module` takes them; parameters that are split get theirs here."""
        found = dict(state)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if name not in found:
                continue
            if self._half and found[name].dtype == torch.float32 and parameter.requires_grad:
                self._full[name] = found[name]
            if states.partitioned(parameter):
                states.put_weight(parameter, found[name])
                found[name] = parameter.detach()
        return found
