"""Checkpoints: what is saved (state), in which file (file), by which operations (io), under which name (policy)."""
