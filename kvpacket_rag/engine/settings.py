"""Paths that may be set from the environment; everything else is an argument."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Settings"]


class Settings(BaseSettings):
    """Where the package keeps what it fetches. Environment: `KVPACKET_HOME`."""

    model_config = SettingsConfigDict(env_prefix="KVPACKET_")

    home: Path = Path.home() / ".cache" / "kvpacket"
    """Cache folder; may be deleted at any time."""

    @property
    def model_folder(self) -> Path:
        """Folder of fetched models."""
        return self.home / "models"
