"""Starting ranks and opening their group: torch's elastic agent, spawn and fork, what clusters say of themselves.

Who calls: the Trainer where several processes are asked for, and `bolide launch`.
"""
