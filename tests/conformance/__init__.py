"""Conformance with Lightning 2.6.6: one script, two packages, the same outcome.

A *script* is a function `script(pl, record, out_dir)` in one of the `scripts_*.py` files here. `pl` is the namespace
to use: the module `lightning.pytorch` or the module `bolide` (Bolide's trainers are built with `compat="lightning"`);
callbacks, loggers and utilities come from the same namespace through `record.part("callbacks")` and so on. `record`
is a `recording.Record`; `out_dir` is an empty folder of that side's own.

`test_conformance.py` runs every script under both packages in one process, the random generators seeded with 0
before each, and compares

- the hook trace: every LightningModule, Callback and DataModule hook in order, with its arguments, its nesting and
  what is visible there (`global_step`, `current_epoch`, stage, `is_last_batch`, grad and inference mode,
  `module.training`), and every logger call between them: equal line by line;
- the stream of logged metrics: same keys and steps in the same order, values to 1e-6 relative;
- `callback_metrics`, `logged_metrics` and `progress_bar_metrics` at every batch end, epoch end and at the end: same
  keys and dtypes, values to 1e-6 relative;
- the weights of every module at the end, to the bit;
- what the script itself noted or returned with `record.note` and `record.value` (returned predictions, file names,
  best model paths, checkpoint contents): tensors to the bit, floats to 1e-6 relative, all else equal.

A script runs in up to three modes, because Bolide picks its training step by what is overridden:

- `closure`: every hook of the module is overridden by the recorder, `optimizer_step` among them;
- `plain`: every hook but `optimizer_step` is, so that the step without a closure runs;
- `bare`: nothing is overridden or added but the recording logger: only results are compared.

Not compared: the text of messages, the order of keys within a dictionary, and anything that depends on time.
Set BOLIDE_CONFORMANCE_CANDIDATE=lightning.pytorch to compare Lightning with itself, which proves that the scripts are
deterministic. The tests are skipped where lightning is not installed.
"""
