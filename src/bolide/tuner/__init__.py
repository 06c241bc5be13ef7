"""The tuner by its public name: a search over settings. Finding a learning rate or a batch size is not built yet."""

from bolide.tuner.searching import SearchResult, search
from bolide.tuner.tuning import Tuner

__all__ = ["SearchResult", "Tuner", "search"]
