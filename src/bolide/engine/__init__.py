"""The engine: Plan (decided once), Run (what changes), and the loops, which are functions."""
