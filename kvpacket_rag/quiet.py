"""Loading models without the progress bars of the libraries that load them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_loading"]


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hide the progress bars of transformers inside the block, and put the setting back."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
