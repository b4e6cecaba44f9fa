"""Paths that can be set by environment variables. All other settings are arguments."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Settings"]


class Settings(BaseSettings):
    """Where the package stores its downloads. The environment variable is `KVPACKET_HOME`."""

    model_config = SettingsConfigDict(env_prefix="KVPACKET_")

    home: Path = Path.home() / ".cache" / "kvpacket"
    """Cache folder. It may be deleted at any time."""

    @property
    def model_folder(self) -> Path:
        """Folder of downloaded models."""
        return self.home / "models"
