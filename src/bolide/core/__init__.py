"""The vocabulary: configuration, hooks, progress, schedules, protocols, errors, environment.

Layer 1. Nothing here opens a file, talks to another process or imports torch.distributed.
"""
