"""The public path of seeding; bolide/seed.py owns it."""

from bolide.seed import isolate_rng, pl_worker_init_function, reset_seed, seed_everything

__all__ = ["isolate_rng", "pl_worker_init_function", "reset_seed", "seed_everything"]
